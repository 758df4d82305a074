"""What a disk may hold after the power failed: rebuilt from a record of all writes, by leaving out what was not synced.

A write is safe when a sync of its file that began later has ended; a name, when a sync of its folder has. Of the rest
any part may have reached the disk, in any order, and of a write any sector.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Literal

from msgspec import Struct

# fmt: off
CALLS = (
    "openat", "write", "writev", "pwrite64", "pwritev", "pwritev2", "fallocate", "ftruncate", "msync", "fsync",
    "fdatasync", "sync_file_range", "unlink", "unlinkat", "rename", "renameat", "renameat2",
)
# fmt: on
LOSSES = ("nothing", "everything", "the tail", "some writes", "sectors of 512", "sectors of 4096")
KEPT = ("", "-wal")  # the files of a store, by what is appended to its name; the shared memory is made anew

Kind = Literal["write", "cut", "sync", "create", "remove", "say"]


class Event(Struct, frozen=True):
    """Something that was done to a file, or said. A sync makes safe what was done before the event number `since`."""

    kind: Kind
    path: str
    offset: int = 0
    data: bytes = b""
    since: int = 0


class Record:
    """All that happened, in order, as strace has written it down (see `strace.recording`)."""

    def __init__(self, log: Path, store: Path, said: Path) -> None:
        self._files = {f"{store}{end}" for end in KEPT}
        self._folder, self._said = str(store.parent), str(said)
        self._there = {str(store)}
        self._waiting: dict[str, tuple[str, int]] = {}  # by thread: a call that has begun
        self.events: list[Event] = []
        with log.open() as lines:
            for line in lines:
                self._read(line.rstrip("\n"))

    def _read(self, line: str) -> None:
        thread, _, call = line.partition(" ")
        call, since = call.lstrip(), len(self.events)
        if call.startswith("<... "):
            begun, since = self._waiting.pop(thread)
            call = begun + call.partition(" resumed>")[2]
        elif call.endswith(" <unfinished ...>"):
            self._waiting[thread] = call.removesuffix(" <unfinished ...>"), since
            return
        found = re.fullmatch(r"(\w+)\((.*)\)\s+= (-?\d+)(.*)", call)
        if found is not None and not found[3].startswith("-"):
            self._note(found[1], found[2], int(found[3]), since)

    def _note(self, call: str, words: str, result: int, since: int) -> None:
        """Keep what concerns the store. A call that we cannot follow is an error: the images would be wrong."""
        path = _path(call, words)
        if path == self._said and call == "write":
            self.events.append(Event("say", path, data=_text(words)))
        if path not in self._files and path != self._folder:
            return
        match call:
            case "pwrite64":
                offset = int(words.rpartition(", ")[2])
                self.events.append(Event("write", path, offset, _text(words)[:result]))
            case "ftruncate":
                self.events.append(Event("cut", path, int(words.rpartition(", ")[2])))
            case "fsync" | "fdatasync":
                self.events.append(Event("sync", path, since=since))
            case "openat":
                if "O_CREAT" in words and path not in self._there:
                    self._there.add(path)
                    self.events.append(Event("create", path))
            case "unlink" | "unlinkat":
                self._there.discard(path)
                self.events.append(Event("remove", path))
            case _:
                raise RuntimeError(f"{call} on {path}: this is not known to happen")


def _path(call: str, words: str) -> str:
    if call in ("openat", "unlink", "unlinkat", "rename", "renameat", "renameat2"):
        return os.fsdecode(_text(words))
    found = re.match(r"\d+<(.*?)>", words)
    return "" if found is None else os.fsdecode(_bytes(found[1]))


def _text(words: str) -> bytes:
    """The first text between quotes."""
    return _bytes(words.partition('"')[2].partition('"')[0])


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


class File(Struct):
    """A file as it may be found, and the changes that are not safe yet."""

    content: bytearray
    unsafe: list[tuple[int, Event]]


class Disk:
    """The state of the disk after so many events."""

    def __init__(self, base: bytes, store: Path, events: list[Event]) -> None:
        self._store = str(store)
        self._names: list[tuple[int, Event, File]] = []  # that are not safe yet, or were not
        self._files = {self._store: File(bytearray(base), [])}
        self._safe_names: dict[str, File] = dict(self._files)
        for number, event in enumerate(events):
            self._apply(number, event, str(store.parent))

    def _apply(self, number: int, event: Event, folder: str) -> None:
        match event.kind:
            case "write" | "cut":
                self._files[event.path].unsafe.append((number, event))
            case "create":
                file = self._files[event.path] = File(bytearray(), [])
                self._names.append((number, event, file))
            case "remove":
                self._names.append((number, event, self._files.pop(event.path)))
            case "sync" if event.path == folder:
                for _, named, file in self._names_before(event.since):
                    _rename(self._safe_names, named, file)
            case "sync":
                self._make_safe(self._files[event.path], event.since)
            case _:
                pass

    def _names_before(self, since: int) -> Iterator[tuple[int, Event, File]]:
        while self._names and self._names[0][0] < since:
            yield self._names.pop(0)

    def _make_safe(self, file: File, since: int) -> None:
        safe = [event for number, event in file.unsafe if number < since]
        file.unsafe = [each for each in file.unsafe if each[0] >= since]
        for event in safe:
            change(file.content, event)

    def image(self, loss: str, random: Random) -> dict[str, bytes]:
        """What is found afterwards, by the end of the file's name."""
        survivors = len(self._names) if loss == "nothing" else 0
        if loss not in ("nothing", "everything"):
            survivors = random.randint(0, len(self._names))
        names = dict(self._safe_names)
        for _, event, file in self._names[:survivors]:
            _rename(names, event, file)
        return {path.removeprefix(self._store): _found(file, loss, random) for path, file in names.items()}


def _rename(names: dict[str, File], event: Event, file: File) -> None:
    if event.kind == "create":
        names[event.path] = file
    else:
        names.pop(event.path, None)


def _found(file: File, loss: str, random: Random) -> bytes:
    content = bytearray(file.content)
    events = [event for _, event in file.unsafe]
    match loss:
        case "everything":
            events = []
        case "the tail":
            events = events[: random.randint(0, len(events))]
        case "some writes":
            events = [event for event in events if random.random() < 0.5]
        case "sectors of 512" | "sectors of 4096":
            size = int(loss.rpartition(" ")[2])
            events = [part for event in events for part in _sectors(event, size) if random.random() < 0.7]
        case _:
            pass
    for event in events:
        change(content, event)
    return bytes(content)


def change(content: bytearray, event: Event) -> None:
    """Do to the content what was done to the file."""
    if event.kind == "cut":
        del content[event.offset :]
        content.extend(bytes(event.offset - len(content)))
        return
    content.extend(bytes(max(0, event.offset - len(content))))
    content[event.offset : event.offset + len(event.data)] = event.data


def _sectors(event: Event, size: int) -> Iterator[Event]:
    if event.kind == "cut":
        yield event
        return
    begin, end = event.offset, event.offset + len(event.data)
    while begin < end:
        stop = min(end, (begin // size + 1) * size)
        yield Event("write", event.path, begin, event.data[begin - event.offset : stop - event.offset])
        begin = stop


def lay_down(image: dict[str, bytes], store: Path, shared_memory: bytes | None) -> None:
    """Write an image to the disk, perhaps with rubbish where the shared memory was."""
    for end in (*KEPT, "-shm", "-bell"):
        Path(f"{store}{end}").unlink(missing_ok=True)
    for end, content in image.items():
        Path(f"{store}{end}").write_bytes(content)
    if shared_memory is not None:
        Path(f"{store}-shm").write_bytes(shared_memory)
