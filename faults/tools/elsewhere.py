"""Another host, as far as the network goes: a namespace of its own, with one line to this one.

    here  10.213.n.1 ──── 10.213.n.2  elsewhere

What is started there by way of `wrap` sees no other network, not even our loopback. It needs the rights of root; where
they are missing `why_not` says so, and an experiment makes do with a proxy on loopback.
"""

import os
import subprocess
from collections.abc import Sequence
from types import TracebackType

NETWORKS = 250


class Elsewhere:
    """There from the start of the block to its end. `host` is our own address, as seen from there; `theirs` is the one
    of what runs there."""

    def __init__(self) -> None:
        number = os.getpid()
        self._name = f"shigoto-{number}"
        self._here, self._there = f"sh{number}a", f"sh{number}b"
        network = f"10.213.{number % NETWORKS}"
        self.host, self.theirs = f"{network}.1", f"{network}.2"
        self.wrap: Sequence[str] = ("ip", "netns", "exec", self._name)

    def __enter__(self) -> "Elsewhere":
        try:
            _ip("netns", "add", self._name)
            _ip("link", "add", self._here, "type", "veth", "peer", "name", self._there)
            _ip("link", "set", self._there, "netns", self._name)
            _ip("addr", "add", f"{self.host}/30", "dev", self._here)
            _ip("link", "set", self._here, "up")
            inside = ("-n", self._name)
            _ip(*inside, "addr", "add", f"{self.theirs}/30", "dev", self._there)
            _ip(*inside, "link", "set", self._there, "up")
            _ip(*inside, "link", "set", "lo", "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def unplug(self) -> None:
        """Pull out the cable: nothing passes, and nobody is told."""
        _ip("link", "set", self._here, "down")

    def plug_in(self) -> None:
        """Put it back."""
        _ip("link", "set", self._here, "up")

    def _remove(self) -> None:
        # With one end of the line the other goes.
        for words in (("link", "del", self._here), ("netns", "del", self._name)):
            subprocess.run(["ip", *words], check=False, capture_output=True)


def why_not() -> str:
    """Why there can be none on this machine; nothing if there can."""
    try:
        with Elsewhere():
            return ""
    except FileNotFoundError:
        return "there is no program ip"
    except subprocess.CalledProcessError as error:
        return str(error.stderr.decode(errors="replace").strip() or error)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
