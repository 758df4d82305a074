"""Rotation of encryption keys: stored texts are encrypted anew by the current key, while work goes on.

    for each page of jobs: read what other keys have encrypted → encrypt → put it there, if it has not changed since

Each page is two short transactions. Whatever a worker, an operator or a sweep writes meanwhile wins: an envelope is
only replaced if it still stands where it was seen. So a rotation can be interrupted, begun again, and run twice at a
time. What is written anew has the current key anyhow, as soon as every process has it; so it goes through everything
once more if it has found anything, and by that knows whether they have.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from msgspec import Struct, structs

from shigoto.encryption import Encryption, Field, Whose
from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.model.errors import EncryptionKeyMissing, ScheduleInvalid, StoreUnavailable
from shigoto.model.job import JobFilter
from shigoto.model.schedule import Change, Schedule
from shigoto.model.secrets import EncryptedText, ReencryptedText, is_encrypted, prefix_of, read_envelope
from shigoto.schedule.definition import read as read_definition
from shigoto.schedule.definition import written

T = TypeVar("T")

PAGE, FIRST_PAGE = 200, 10  # jobs
# Characters that are written at once, and about as many are read: PostgreSQL takes 256 MiB.
ROOM = 8 * 1024 * 1024
PASSES = 3  # through everything
TRIES = 10  # of one step, where the store is busy
PAUSE = 0.2  # seconds between them
BUSY = "(schedules that others change all the time)"


class Rotated(Struct, frozen=True, kw_only=True):
    """What a rotation has done so far: it is at the job `at` of `to`, the newest one when it began.

    `unreadable` counts, by the id of its key, what it could not open, and has left as it was. `restless` if it has
    found more whenever it came by: somebody does not have the current key yet, or not as the first.
    """

    at: int
    to: int
    changed: int
    schedules: int
    unreadable: dict[str, int]
    restless: bool = False


class Rotation:
    """Encrypts everything anew that another key than the current one has encrypted."""

    def __init__(
        self,
        engine: Engine,
        keys: Encryption,
        *,
        page: int = PAGE,
        tell: Callable[[Rotated], None] = lambda rotated: None,
    ) -> None:
        self._engine = engine
        self._keys = keys
        self._most = page
        self._page = min(page, FIRST_PAGE)
        self._tell = tell
        self._restless = False
        self._at = self._to = self._changed = self._schedules = 0
        self._unreadable = Counter[str]()

    def run(self) -> Rotated:
        """Go through all schedules and jobs, until there is nothing left to do. Raises StoreError; Unsupported where
        the store is a server."""
        for _ in range(PASSES):
            self._restless = self._pass()
            if not self._restless:
                break
        return self._told()

    def _pass(self) -> bool:
        """Go through everything once, and tell whether there was anything to do."""
        self._at, before = 0, self._schedules
        # First, since ticks make jobs of what stands there: those must not be behind us with the old key.
        self._rotate_schedules()
        met = self._schedules > before
        newest = self._patiently(self._engine.find(JobFilter(limit=1)))
        self._to = newest[0].number if newest else 0
        registry = self._engine.registry
        while True:
            found, to = self._patiently(
                registry.encrypted(self._keys.current, after=self._at, limit=self._page)
            )
            if to is None:
                break
            for portion in _portions(self._anew(found)):
                met = True
                self._changed += self._patiently(registry.reencrypt(portion))
            size = sum(len(each.text) for each in found)
            if size > ROOM:  # no more at once than there is room for, if the next envelopes have this size
                self._page = max(1, self._page * ROOM // size)
            elif size < ROOM // 4:
                self._page = min(self._most, self._page * 2)
            self._at = to
            self._tell(self._told())
        return met

    def _told(self) -> Rotated:
        return Rotated(
            at=self._at,
            to=max(self._to, self._at),
            changed=self._changed,
            schedules=self._schedules,
            unreadable=dict(self._unreadable),
            restless=self._restless,
        )

    def _anew(self, found: Iterable[EncryptedText]) -> Iterator[ReencryptedText]:
        for encrypted in found:
            field: Field = "error" if encrypted.held == "failure" else encrypted.held
            text = self._reencrypted(encrypted.text, encrypted, field)
            if text is not None:
                yield ReencryptedText(encrypted, text)

    def _rotate_schedules(self) -> None:
        """The arguments of schedules that were added at run time stand in their definitions. One that ticks meanwhile
        is read again."""
        lost = 0
        for _ in range(TRIES):
            self._unreadable.clear()
            schedules = self._patiently(self._engine.schedules())
            changes = list(self._changed_schedules(schedules))
            if not changes:
                return
            done = self._patiently(self._engine.tick(changes))
            lost = sum(change is None for change in done)
            self._schedules += len(done) - lost
        if lost:
            self._unreadable[BUSY] = lost

    def _changed_schedules(self, schedules: Iterable[Schedule]) -> Iterator[Change]:
        current = prefix_of(self._keys.current)
        for schedule in schedules:
            try:
                definition = read_definition(schedule.definition)
            except ScheduleInvalid:  # of another release, which knows what is in it
                self._unreadable["?"] += 1
                continue
            job = definition.job
            if job is None or not is_encrypted(job.payload) or job.payload.startswith(current):
                continue
            payload = self._reencrypted(job.payload, job.spec(schedule.id), "payload")
            if payload is not None:
                anew = structs.replace(definition, job=structs.replace(job, payload=payload))
                yield Change(
                    schedule=structs.replace(schedule, definition=written(anew)), seen=schedule.revision
                )

    def _reencrypted(self, text: str, whose: Whose, field: Field) -> str | None:
        try:
            return self._keys.reencrypted(text, whose, field)
        except EncryptionKeyMissing:
            envelope = read_envelope(text)
            self._unreadable["?" if envelope is None else envelope.k] += 1
            return None

    def _patiently(self, op: Op[T]) -> T:
        """Run the op; where the store is busy, in a moment."""
        for _ in range(TRIES - 1):
            try:
                return self._engine.run(op)
            except StoreUnavailable:
                time.sleep(PAUSE)
        return self._engine.run(op)


def _portions(changes: Iterable[ReencryptedText]) -> Iterator[list[ReencryptedText]]:
    """What is written at once: as much as there is room for, and at least one."""
    portion: list[ReencryptedText] = []
    size = 0
    for change in changes:
        size += len(change.text)
        if portion and size > ROOM:
            yield portion
            portion, size = [], len(change.text)
        portion.append(change)
    if portion:
        yield portion
