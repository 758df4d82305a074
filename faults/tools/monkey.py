"""The monkey: does bad things to workers, at moments and in an order that a seed decides.

    kill      SIGKILL to every process of a worker; another one is started
    term      SIGTERM to its supervisor, which stops it in good order; another one is started at the same time
    restart   the same, but the other one is started only when it has ended
    stop      SIGSTOP to every process of it; SIGCONT after a while
    cont      SIGCONT to whoever was stopped first

What is done next does not depend on how the workers fare, so a seed gives the same story again: deeds, pauses, and
which of the workers, counted from the oldest. Everything done is in the ledger, as a record `fault`.
"""

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from types import TracebackType

from msgspec import Struct

from faults.stage import Stage

DEEDS = ("kill", "term", "restart", "stop", "cont")
LOOK = 0.02  # seconds between looks at whether it is time to go
NEVER = 1e9

Worker = subprocess.Popen[bytes]
Range = tuple[float, float]


class Action(Struct, frozen=True):
    """After a pause, do this to one of the workers; `whom` is a fraction of them, `length` how long a stop lasts."""

    pause: float
    deed: str
    whom: float
    length: float


def schedule(
    random: Random, deeds: Mapping[str, float], pause: Range, stopped_for: Range
) -> Iterator[Action]:
    """What a monkey with these chances does, for ever. `deeds` are weights."""
    unknown = sorted(set(deeds) - set(DEEDS))
    if unknown or not deeds:
        raise ValueError(f"A monkey knows {', '.join(DEEDS)}; not {', '.join(unknown) or 'nothing at all'}.")
    names, weights = list(deeds), list(deeds.values())
    while True:
        yield Action(
            random.uniform(*pause),
            random.choices(names, weights)[0],
            random.random(),
            random.uniform(*stopped_for),
        )


class Monkey:
    """Disturbs `workers`, a list that it keeps: those it ends leave it, and those that `start` gives come in.

        Monkey(stage, random, start=start, workers=[start() for _ in range(4)], deeds={"kill": 1}).run(until=done)

    As a context manager it works in a thread of its own until the end of the block. In either case every worker runs
    at the end. `done` counts the deeds, `ended` has the exit codes of workers that ended although nobody asked them to.
    """

    def __init__(
        self,
        stage: Stage,
        random: Random,
        *,
        start: Callable[[], Worker],
        workers: Sequence[Worker],
        deeds: Mapping[str, float],
        pause: Range = (1.0, 5.0),
        stopped_for: Range = (0.5, 2.0),
    ) -> None:
        self._stage = stage
        self._start = start
        self._schedule = schedule(random, deeds, pause, stopped_for)
        self._stopped: dict[Worker, float] = {}  # until when, by the monotonic clock
        self._leaving: list[Worker] = []
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self.workers = list(workers)
        self.done: Counter[str] = Counter()
        self.ended: list[int] = []

    def run(self, until: Callable[[], object]) -> None:
        """Go on until it is true, or the block has ended."""
        try:
            for action in self._schedule:
                if not self._wait(action.pause, until):
                    return
                self._do(action)
        finally:
            self._resume(NEVER)
            self.workers += [self._start() for _ in self._leaving]
            self._leaving.clear()

    def __enter__(self) -> "Monkey":
        self._thread = threading.Thread(target=self._run_in_thread, name="monkey")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        assert self._thread is not None
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run_in_thread(self) -> None:
        try:
            self.run(until=self._ending.is_set)
        except Exception as error:
            self._error = error

    def _wait(self, seconds: float, until: Callable[[], object]) -> bool:
        end = time.monotonic() + seconds
        while not until():
            now = time.monotonic()
            self._resume(now)
            self._replace()
            if now >= end:
                return True
            time.sleep(min(LOOK, end - now))
        return False

    def _do(self, action: Action) -> None:
        if action.deed == "cont":
            self._resume_first()
            return
        worker = self.workers[int(action.whom * len(self.workers))] if self.workers else None
        if worker is None or (worker in self._stopped and action.deed != "kill"):
            return  # it has enough to bear
        self.done[action.deed] += 1
        match action.deed:
            case "kill":
                self._stopped.pop(worker, None)
                self.workers.remove(worker)
                self._stage.do("kill", worker)
                worker.wait()
                self.workers.append(self._start())
            case "stop":
                self._stage.do("stop", worker)
                self._stopped[worker] = time.monotonic() + action.length
            case _:
                self.workers.remove(worker)
                if action.deed == "restart":
                    self._leaving.append(worker)
                else:
                    self.workers.append(self._start())
                self._stage.do("term", worker, whole_tree=False)

    def _resume_first(self) -> None:
        if self._stopped:
            self.done["cont"] += 1
            self._resume(min(self._stopped.values()))

    def _resume(self, now: float) -> None:
        """Let those go on whose time has come."""
        for worker in [worker for worker, until in self._stopped.items() if until <= now]:
            del self._stopped[worker]
            self._stage.do("cont", worker)

    def _replace(self) -> None:
        """Start those whose places are free."""
        for worker in [worker for worker in self._leaving if worker.poll() is not None]:
            self._leaving.remove(worker)
            self.workers.append(self._start())
        for worker in [worker for worker in self.workers if worker.poll() is not None]:
            self.ended.append(worker.returncode)
            self.workers.remove(worker)
            self.workers.append(self._start())
