"""Terminals for tests: one that `pyte` reads, and one in tmux that is recorded."""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyte
import pyte.modes

PATIENCE = 40.0  # seconds, for a busy machine
ENDED = "ended with"
ALTERNATE, PASTE_MARKS = 1049 << 5, 2004 << 5  # as pyte keeps private modes

# Makes its standard input the terminal that Ctrl-C and a change of size reach it by.
WITH_TERMINAL = [
    sys.executable,
    "-c",
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])",
]


class Screen:
    """A program on a pseudo-terminal, and what a person would see there."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        columns: int = 110,
        lines: int = 32,
    ) -> None:
        self._terminal, self._inner = pty.openpty()
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._set_size(columns, lines)
        self.modes_before = termios.tcgetattr(self._inner)
        self.raw = b""
        self._hung_up = False
        self.process = subprocess.Popen(
            [*WITH_TERMINAL, *words],
            cwd=folder,
            env={**environment, "TERM": "xterm-256color"},
            stdin=self._inner,
            stdout=self._inner,
            stderr=self._inner,
            start_new_session=True,
        )

    @property
    def lines(self) -> list[str]:
        """What is shown, without the blanks at the ends of lines."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        """The same as one text."""
        return "\n".join(self.lines)

    def line(self, words: str) -> str:
        """The first line with these words in it, or nothing."""
        return next((line for line in self.lines if words in line), "")

    @property
    def modes(self) -> list[object]:
        """The modes of the terminal: echo and the like."""
        return list(termios.tcgetattr(self._inner))

    def is_plain(self) -> bool:
        """Whether the program has given back everything that it has set by writing."""
        modes = self._screen.mode
        return (
            ALTERNATE not in modes
            and PASTE_MARKS not in modes
            and pyte.modes.DECAWM in modes
            and not self._screen.cursor.hidden
        )

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._terminal, keys.encode())

    def reset(self) -> None:
        """Set the modes as they were before the program began, as a shell does."""
        termios.tcsetattr(self._inner, termios.TCSANOW, self.modes_before)

    def resize(self, columns: int, lines: int) -> None:
        """Make the window another size; the system tells the program. A size of nothing is none at all."""
        self.read()
        if columns and lines:
            self._screen.resize(lines, columns)
        self._set_size(columns, lines)

    def hold(self) -> None:
        """Take no more output, as after Ctrl-S."""
        termios.tcflow(self._inner, termios.TCOOFF)

    def hang_up(self) -> None:
        """Close the window; the system tells the program, which can neither read nor write from now on."""
        self.read()
        for end in (self._inner, self._terminal):
            os.close(end)
        self._hung_up = True

    def until(self, condition: Callable[[], bool], what: str = "") -> None:
        """Wait for what is to be seen."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self.read()
            if condition():
                return
            assert time.monotonic() < deadline, f"{what} did not come in time:\n{self.text}"
            select.select([self._terminal], [], [], 0.05)

    def until_shown(self, *words: str) -> None:
        """Wait until all of these are to be seen somewhere, wherever their lines break."""
        self.until(lambda: all(each in " ".join(self.text.split()) for each in words), " and ".join(words))

    def until_ended(self) -> int:
        """Wait for the end of the program, and see all that it wrote; its exit code."""
        self.until(lambda: self.process.poll() is not None, "the end")
        self.read()
        return self.process.returncode

    def read(self) -> None:
        """See what was written so far."""
        with suppress(OSError):
            while select.select([self._terminal], [], [], 0)[0]:
                some = os.read(self._terminal, 65_536)
                self.raw += some
                self._stream.feed(some)

    def close(self) -> None:
        """End the program, if it has not ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if not self._hung_up:
            os.close(self._terminal)
            os.close(self._inner)

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


class Recorder:
    """A program in a tmux of its own, and what was to be seen there over time, as an asciicast (version 2)."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        columns: int = 110,
        lines: int = 30,
    ) -> None:
        self.frames: list[tuple[float, str]] = []
        self._size = columns, lines
        # Not in the test's folder, whose path may be too long for a socket.
        self._home = tempfile.mkdtemp(prefix="shigoto-", dir="/tmp")
        self._environment = {name: value for name, value in environment.items() if name != "TMUX"}
        self._environment["TMUX_TMPDIR"] = self._home
        self._folder = folder
        self._began = time.monotonic()
        size = ["-x", str(columns), "-y", str(lines)]
        # A shell tells the exit code: tmux itself sometimes misses the end of its programs.
        told = ["sh", "-c", f'"$@"; echo "{ENDED} $?"; read line', "sh", *words]
        self._tmux("new-session", "-d", *size, *told, ";", "set-option", "-g", "status", "off")

    def keys(self, *names: str) -> None:
        """Press keys, by the names that tmux has for them."""
        self._tmux("send-keys", *names)

    def look(self) -> str:
        """What is to be seen now, without colours; with them it is recorded, if it is new and the program's."""
        frame = self._tmux("capture-pane", "-e", "-p")
        is_new = not self.frames or self.frames[-1][1] != frame
        if is_new and frame.strip() and ENDED not in frame:
            self.frames.append((time.monotonic() - self._began, frame))
        return self._tmux("capture-pane", "-p")

    def until(self, condition: Callable[[str], bool]) -> str:
        """Record until this is to be seen."""
        deadline = time.monotonic() + PATIENCE
        while not condition(seen := self.look()):
            assert time.monotonic() < deadline, f"it did not come in time:\n{seen}"
            time.sleep(0.05)
        return seen

    def all(self, pattern: str) -> set[str]:
        """Everything of this kind that was ever to be seen."""
        plain = [re.sub(r"\x1b\[[0-9;]*m", "", frame) for _, frame in self.frames]
        return {found for frame in plain for found in re.findall(pattern, frame)}

    def write(self, path: Path, title: str) -> None:
        """Write the recording."""
        columns, lines = self._size
        header = {"version": 2, "width": columns, "height": lines, "title": title}
        events = [
            [round(at, 3), "o", "\x1b[0m\x1b[H\x1b[2J" + frame.rstrip("\n").replace("\n", "\r\n")]
            for at, frame in self.frames
        ]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in (header, *events)), encoding="utf-8")

    def close(self) -> None:
        """End this tmux, and no other."""
        with suppress(subprocess.CalledProcessError):
            self._tmux("kill-server")
        shutil.rmtree(self._home)

    def _tmux(self, *words: str) -> str:
        return subprocess.run(
            ["tmux", "-L", "recorder", "-f", "/dev/null", "-u", *words],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            encoding="utf-8",
            timeout=PATIENCE,
        ).stdout
