"""People at a store that is to be moved: one fills it with jobs of every kind, and one goes on to meddle with them."""

import threading
import time
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import Any
from uuid import UUID

from msgspec import Struct

from faults.evidence.records import Pen, What
from shigoto import Job, Shigoto, ShigotoError, State, StoreMoved
from shigoto.model.ids import uuid7

HELD = "held"  # a queue that is paused
AT_ONCE = 200  # jobs
KEPT = 5  # failed jobs, which nobody retries
# How many of a thousand jobs are of which kind, and which task that is.
KINDS = {
    "brief": (640, "asynchronous"),
    "talkative": (60, "talkative"),
    "failing": (40, "failing"),
    "later": (160, "in_a_thread"),
    "held": (60, "talkative"),
    "unwanted": (40, "asynchronous"),
}
PAST = (
    "brief",
    "talkative",
)  # kinds that have soon ended, as the first half of all jobs, which changes no more


class Filled(Struct, frozen=True):
    """Of what a store was filled with: which jobs nobody wants, and the keys of those that have soon ended."""

    unwanted: list[UUID]
    keys: list[str]


def fill(app: Shigoto, pen: Pen, random: Random, *, jobs: int, later: tuple[float, float]) -> Filled:
    """Enqueue jobs of every kind. `later` is in how many seconds some are due."""
    kinds = random.choices(list(KINDS), [many for many, _ in KINDS.values()], k=jobs)
    past = [place for place, kind in enumerate(kinds) if kind in PAST][: jobs // 2]
    for first, place in enumerate(past):
        kinds[first], kinds[place] = kinds[place], kinds[first]
    filled = Filled([], [])
    for first in range(0, jobs, AT_ONCE):
        wanted = {uuid7(): kind for kind in kinds[first : first + AT_ONCE]}
        app.enqueue_many(_call(app, pen, random, id, kind, later) for id, kind in wanted.items())
        for id, kind in wanted.items():
            pen.write("ok", job=str(id))
            if kind == "unwanted":
                filled.unwanted.append(id)
            elif first < len(past) - AT_ONCE:
                filled.keys.append(_key(id))
    return filled


def _key(id: UUID) -> str:
    return f"key of {id}"


def _call(app: Shigoto, pen: Pen, random: Random, id: UUID, kind: str, later: tuple[float, float]) -> Any:
    options: dict[str, Any] = {"queue": HELD} if kind == "held" else {}
    due: float | None = None
    if kind in ("later", "unwanted") or (kind == "held" and random.random() < 0.5):
        options["delay"] = random.uniform(*later)
        due = time.monotonic() + options["delay"]
    if random.random() < 0.3:
        options["key"] = _key(id)
    if random.random() < 0.1:
        options["tenant"] = random.choice(("a tenant", "another"))
    if random.random() < 0.3:
        options |= {"priority": random.randint(-5, 5), "tags": ("a", "仕事"), "meta": {"kind": kind}}
    pen.write("try", job=str(id), due=due)
    return app.tasks[KINDS[kind][1]].using(id=id, **options).call(milliseconds=random.randint(0, 3))


class Operator:
    """Cancels what nobody wants, retries what has failed, deletes what is done, and asks for jobs with keys that others
    have had. `deleted` are the ids of jobs that may be gone.

    It does so until the end of the block, at the new store once the old one sends it there. What it is about to do
    stands in the ledger; whatever the store says to it, it goes on.
    """

    def __init__(
        self, old: Shigoto, new: Shigoto, pen: Pen, random: Random, filled: Filled, every: float
    ) -> None:
        self._app, self._new = old, new
        self._pen, self._random = pen, random
        self._unwanted, self._keys = list(filled.unwanted), filled.keys
        self._every = every
        self.deleted: set[str] = set()
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._work, name="operator")

    def __enter__(self) -> "Operator":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._enough.set()
        self._thread.join()

    def cancel(self, jobs: int) -> None:
        """Cancel so many of what nobody wants."""
        for _ in range(jobs):
            self._cancel()

    def _work(self) -> None:
        while not self._enough.wait(self._every):
            try:
                self._random.choice((self._retry, self._cancel, self._delete, self._ask_again))()
            except StoreMoved:
                self._app = self._new
            except ShigotoError:
                continue  # it is closed just now; or the job is not what it was

    def _ask_again(self) -> None:
        """For a job whose key one that has ended has; if that one has not, nothing is stored."""
        id, key = uuid7(), self._random.choice(self._keys)
        self._pen.write("try", job=str(id))
        try:
            made = self._app.tasks["asynchronous"].using(id=id, key=key).enqueue(milliseconds=1)
        except ShigotoError as error:
            self._pen.write("err", job=str(id), outcome=type(error).__name__, ambiguous=True)
            raise
        what: What = "ok" if made.enqueued == "inserted" else "err"
        self._pen.write(what, job=str(id), key=key, outcome=made.enqueued)

    def _cancel(self) -> None:
        if not self._unwanted:
            return
        id = self._unwanted.pop()
        self._pen.write("cancel", job=str(id))
        with suppress(ShigotoError):
            self._app.job(id).cancel()

    def _delete(self) -> None:
        done: list[Job] = self._app.find(state="completed", limit=100)
        if done:
            job = self._random.choice(done)
            self.deleted.add(str(job.id))
            engine = self._app.engine
            engine.run(engine.delete([job.number], [State.COMPLETED]))

    def _retry(self) -> None:
        failed: list[Job] = self._app.find(state="failed", limit=100)
        if len(failed) > KEPT:
            id = self._random.choice(failed).id
            self._pen.write("retry", job=str(id))
            self._app.job(id).retry()
