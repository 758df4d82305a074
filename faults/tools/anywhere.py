"""A world in which every address is ours: whatever is connected to, we hear of it, and nothing leaves the machine.

    unshare --user --map-root-user --mount --net python -m faults.tools.anywhere [--careless] < questions

In a network of its own all addresses, of IPv4 and IPv6, lead to one listener, which notes which of them was meant.
Names are answered by a DNS server of ours, which the system's own resolver asks, and which may change its mind from one
question to the next. Each line of input is a webhook as JSON; each line of output tells what became of it, and which
addresses it has reached. `--careless` is the broken build: it checks a name and then connects to it by name.
"""

import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any
from uuid import uuid4

from msgspec import Struct, json

from shigoto.model.time import host_clock, to_datetime
from shigoto.notify import Notification, Webhook, egress
from shigoto.notify import webhook as webhooks

PORTS = (80, 443, 8080, 8443)
REDIRECTS = 8080
MARKS = ("127.255.255.1", "fd01::beef")  # nobody else asks for these
TO_METADATA = "http://169.254.169.254/latest/meta-data/"
PUBLIC, PUBLIC6 = "8.8.8.8", "2606:4700:4700::1111"
# By name, the answers to questions for A and AAAA, one after the other; the last one stands.
NAMES: dict[str, dict[int, list[list[str]]]] = {
    "public.test": {1: [[PUBLIC]], 28: [[]]},
    "public6.test": {1: [[]], 28: [[PUBLIC6]]},
    "rebinding.test": {1: [[PUBLIC], ["127.0.0.1"]], 28: [[]]},
    "rebinding6.test": {1: [[]], 28: [[PUBLIC6], ["::1"]]},
    "metadata.test": {1: [["169.254.169.254"]], 28: [[]]},
    "mixed.test": {1: [[PUBLIC, "127.0.0.1"]], 28: [[]]},
    "mixed6.test": {1: [[PUBLIC]], 28: [["fd00::1"]]},
    "mapped.test": {1: [[]], 28: [["::ffff:10.0.0.1"]]},
    "nothing.test": {1: [[]], 28: [[]]},
}


class Reached(Struct):
    """What became of one webhook."""

    url: str
    ended: str
    addresses: list[str]


class World:
    """The listeners and the names."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self._asked = Counter[tuple[str, int]]()

    def open(self) -> None:
        """Make every address ours, and the names too."""
        for words in (
            ("link", "set", "lo", "up"),
            ("route", "add", "local", "0.0.0.0/0", "dev", "lo"),
            ("-6", "route", "add", "local", "::/0", "dev", "lo"),
        ):
            subprocess.run(["ip", *words], check=True, capture_output=True)
        with tempfile.NamedTemporaryFile("w", suffix=".conf", delete=False) as file:
            file.write("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        subprocess.run(["mount", "--bind", file.name, "/etc/resolv.conf"], check=True, capture_output=True)
        os.unlink(file.name)
        names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        names.bind(("127.0.0.1", 53))
        threading.Thread(target=self._answer_names, args=(names,), daemon=True).start()
        for port in PORTS:
            for family, every in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
                listener = socket.socket(family, socket.SOCK_STREAM)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind((every, port))
                listener.listen(64)
                threading.Thread(target=self._listen, args=(listener, port), daemon=True).start()

    def _listen(self, listener: socket.socket, port: int) -> None:
        while True:
            line, _ = listener.accept()
            with line, suppress(OSError):
                self.reached.append(f"{line.getsockname()[0]} {port}")
                if port == REDIRECTS:
                    line.settimeout(2)
                    line.recv(65_536)
                    line.sendall(
                        f"HTTP/1.1 302 Found\r\nLocation: {TO_METADATA}\r\nContent-Length: 0\r\n\r\n".encode()
                    )

    def heard(self) -> list[str]:
        """What was reached since the last question. Each listener takes one line after the other: when it has heard of
        ours, it has heard of all before."""
        for port in PORTS:
            for mark in MARKS:
                with socket.create_connection((mark, port), 5):
                    pass
        marks = {f"{mark} {port}" for mark in MARKS for port in PORTS}
        deadline = time.monotonic() + 10
        while not marks <= set(self.reached):
            if time.monotonic() > deadline:
                raise TimeoutError("a listener has not heard of a connection")
            time.sleep(0.001)
        found = [place for place in self.reached if place not in marks]
        self.reached.clear()
        return found

    def _answer_names(self, names: socket.socket) -> None:
        while True:
            question, asker = names.recvfrom(4_096)
            names.sendto(self._answer(question), asker)

    def _answer(self, question: bytes) -> bytes:
        name, end = _name(question)
        kind = struct.unpack("!H", question[end : end + 2])[0]
        known = NAMES.get(name)
        answers: list[str] = []
        if known is not None:
            lists = known.get(kind, [[]])
            answers = lists[min(self._asked[name, kind], len(lists) - 1)]
            self._asked[name, kind] += 1
        flags = 0x8180 if known is not None else 0x8183
        head = question[:2] + struct.pack("!HHHHH", flags, 1, len(answers), 0, 0)
        records = b""
        for answer in answers:
            packed = socket.inet_pton(socket.AF_INET if kind == 1 else socket.AF_INET6, answer)
            records += b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0, len(packed)) + packed
        return head + question[12 : end + 4] + records


def _name(question: bytes) -> tuple[str, int]:
    labels: list[str] = []
    at = 12
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode().lower())
        at += 1 + length
    return ".".join(labels), at + 1


def careless(
    host: str, port: int, *, deadline: float, internal: bool, resolving: egress.Resolve
) -> socket.socket:
    """The mistake that everybody makes: what is checked is not what is connected to."""
    for place in resolving(host, port):
        if egress.is_forbidden(place.host):
            raise PermissionError("forbidden")
    return socket.create_connection((host, port), 2)


def deliver(world: World, said: dict[str, Any]) -> Reached:
    """One delivery, by the code that is shipped."""
    event = Notification(id=uuid4(), kind="test", rule="e52", subject="e52", at=to_datetime(host_clock()))
    try:
        Webhook(**said).deliver(event)
        ended = "delivered"
    except Exception as error:
        ended = type(error).__name__
    return Reached(said["url"], ended, world.heard())


def main(arguments: list[str]) -> None:
    """Serve until the end of the input."""
    world = World()
    world.open()
    if "--careless" in arguments:
        vars(webhooks)["connect"] = careless
    for address in ("127.0.0.1", "169.254.169.254", "10.1.2.3", "::1", "fd00::7"):
        with socket.create_connection((address, 443), 2):  # the listener hears what should not be
            pass
    print(json.encode({"heard": len(world.heard())}).decode(), flush=True)
    for line in sys.stdin:
        said = json.decode(line)
        if "ports" in said:
            said["ports"] = tuple(said["ports"])
        print(json.encode(deliver(world, said)).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
