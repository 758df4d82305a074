"""The doorbell of idle workers: a small file, touched after every commit that made work ready.

A touch costs the producer a few microseconds and wakes every listener within a millisecond, also in other processes. A
caller's own transaction cannot ring after its commit, so listeners watch the write-ahead log too. There the event comes
with the write, before the commit can be seen: the listener looks a few times, for as long as a disk may take to sync,
whether there has been a commit, and rings for that. Looking costs a fiftieth of a millisecond; to ring for every write
would cost a claim each time, in vain, also for every beat of an idle worker. The log of a busy store is written
thousands of times a second, and 32 workers that woke for each write spent ten times as much on that as on jobs. So the
log is watched for one write, and again when the round of looks is over. Where the kernel offers no inotify, the two
files are looked at every 50 ms. Missing a ring costs no more than the worker's poll interval.
"""

import asyncio
import contextlib
import ctypes
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

LOOK_AGAIN = (0.0005, 0.0015, 0.0035, 0.0075, 0.025, 0.075)  # seconds after a write to the log
POLL = 0.05
MISSING_FOR = 0.001  # seconds

IN_MODIFY, IN_ATTRIB, IN_IGNORED = 0x2, 0x4, 0x8000
IN_ONESHOT = 0x80000000
IN_CLOEXEC, IN_NONBLOCK = 0o2000000, 0o4000


class DoorbellFile:
    """What producers ring. One that cannot be rung is not worth an error, since polling is always correct."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._missing_until = 0.0

    def ring(self) -> None:
        """Wake whoever listens. Where no worker has made the file, we look for it again only after a while: what a new
        worker does not hear it sees in the log, or when it first looks."""
        now = time.monotonic()
        if now < self._missing_until:
            return
        try:
            os.utime(self._path)
        except OSError:
            self._missing_until = now + MISSING_FOR


def create(doorbell: Path, store: Path) -> None:
    """Make the file beside the store, for whoever may use the store: with the same mode, and by root the same owner."""
    with contextlib.suppress(OSError):
        doorbell.touch(exist_ok=False)
        status = os.stat(store)
        os.chmod(doorbell, status.st_mode & 0o777)
        if os.geteuid() == 0:
            os.chown(doorbell, status.st_uid, status.st_gid)


class SqliteDoorbell:
    """One listener on the running event loop.

    `version` tells what changes with every commit, None if that cannot be known. It is asked on the event loop.
    """

    def __init__(self, doorbell: Path, wal: Path, version: Callable[[], object | None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._doorbell, self._wal = doorbell, wal
        self._version, self._known = version, version()
        self._rung = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._looks: list[float] = []
        self._inotify = _Inotify.open()
        if self._inotify is not None:
            self._inotify.watch(doorbell, wal)
            self._loop.add_reader(self._inotify.fd, self._heard)
        else:
            self._seen = _stamps(doorbell, wal)
            self._timer = self._loop.call_later(POLL, self._look)

    async def wait(self, timeout: float) -> bool:
        if self._inotify is not None and not self._looks:
            self._inotify.watch_log()  # unless it is watched; it may have been missing for a while
        try:
            async with asyncio.timeout(timeout):
                await self._rung.wait()
        except TimeoutError:
            return False
        self._rung.clear()
        return True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._inotify is not None:
            self._loop.remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None

    def _heard(self) -> None:
        if self._inotify is None:
            return
        doorbell, wal = self._inotify.read()
        if doorbell:
            self._note()  # whoever is woken looks later than this, and sees all that is committed by now
            self._rung.set()
        if wal and not self._looks:
            now = self._loop.time()
            self._looks = [now + delay for delay in LOOK_AGAIN]
            self._timer = self._loop.call_at(self._looks[0], self._look_for_commit)

    def _note(self) -> bool:
        """Whether there may have been a commit since this was last asked."""
        known, self._known = self._known, None if self._inotify is None else self._version()
        return self._known is None or self._known != known

    def _look_for_commit(self) -> None:
        if self._note():
            self._rung.set()
            # Most often that was all. But two commits in a row may have come as one event, so the last look remains.
            self._looks[:-1] = []
        now = self._loop.time()
        self._looks = [at for at in self._looks if at > now]
        if self._looks:
            self._timer = self._loop.call_at(self._looks[0], self._look_for_commit)
        elif self._inotify is not None:
            self._inotify.watch_log()
            if self._note():  # since the last look, and before the log was watched again
                self._rung.set()

    def _look(self) -> None:
        seen = _stamps(self._doorbell, self._wal)
        if seen != self._seen:
            self._seen = seen
            self._rung.set()
        self._timer = self._loop.call_later(POLL, self._look)


def _stamps(*paths: Path) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for path in paths:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            found.append((status.st_mtime_ns, status.st_size))
    return found


class _Inotify:
    """Just enough of inotify(7), which the standard library does not offer."""

    def __init__(self, libc: ctypes.CDLL, fd: int) -> None:
        self._libc, self.fd = libc, fd
        self._names: dict[int, str] = {}
        self._paths: dict[str, tuple[Path, int]] = {}

    @classmethod
    def open(cls) -> "_Inotify | None":
        if sys.platform != "linux":
            return None
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            fd = int(libc.inotify_init1(IN_CLOEXEC | IN_NONBLOCK))
        except (OSError, AttributeError):
            return None
        return cls(libc, fd) if fd >= 0 else None

    def watch(self, doorbell: Path, wal: Path) -> None:
        self._paths = {"doorbell": (doorbell, IN_ATTRIB), "wal": (wal, IN_MODIFY | IN_ONESHOT)}
        self._add("doorbell")
        self.watch_log()

    def watch_log(self) -> None:
        """Tell of the next write to the log."""
        if "wal" not in self._names.values():
            self._add("wal")

    def read(self) -> tuple[bool, bool]:
        """Whether the doorbell was rung and whether the log was written since the last read."""
        try:
            events = os.read(self.fd, 4096)
        except BlockingIOError:
            return False, False
        heard: set[str] = set()
        offset = 0
        while offset < len(events):
            watch, mask, _, length = struct.unpack_from("iIII", events, offset)
            offset += 16 + length
            name = self._names.get(watch)
            if name is None:
                continue
            heard.add(name)
            if mask & IN_IGNORED:
                del self._names[watch]
                if name == "doorbell":  # the file was replaced: listen to the new one
                    self._add(name)
        return "doorbell" in heard, "wal" in heard

    def close(self) -> None:
        os.close(self.fd)

    def _add(self, name: str) -> None:
        path, mask = self._paths[name]
        watch = self._libc.inotify_add_watch(self.fd, os.fsencode(path), mask)
        if watch >= 0:
            self._names[int(watch)] = name
