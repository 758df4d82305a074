"""One call that runs jobs: which of them is next, and when to stop."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from contextvars import Context as Variables
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol

from shigoto.model.job import Lease
from shigoto.testing.hand import Hand
from shigoto.testing.runs import Run, surprising
from shigoto.testing.store import Died
from shigoto.worker.reporting import capturing
from shigoto.worker.runner import Runner

MOST_RUNS = 10_000

# What a handler may raise without stopping the test. Anything else means the test itself: Ctrl-C, pytest.fail().
HANDLERS_OWN = (Exception, SystemExit, asyncio.CancelledError, Died)


class Holder(Protocol):
    """Who has claimed the jobs. Handlers see its context variables: no caller's, as at a worker."""

    hands: dict[int, Hand]
    variables: Variables

    def settle(self, lease: Lease, hand: Hand) -> Run | None:
        """Tell the store how a run ended."""
        ...

    def release(self, leases: Sequence[Lease]) -> None:
        """Give back what has not been run."""
        ...


class Round:
    """The runs of one call; what a job has enqueued meanwhile is part of it, and what the app's lifespan has.

    However it ends, nothing is left half done: a run that was begun is settled, the rest is given back. Of `bound` runs
    there were some `before` it; `remedy` is what to do if they are not enough.
    """

    def __init__(
        self,
        holder: Holder,
        leases: Sequence[Lease],
        more: Callable[[], Sequence[Lease]],
        *,
        bound: int = MOST_RUNS,
        before: int = 0,
        remedy: str = "jobs.run_all() goes on with them.",
        raise_errors: bool = False,
    ) -> None:
        self._holder = holder
        self._waiting = deque(leases)
        self._more = more
        self._bound = bound
        self._before = before
        self._remedy = remedy
        self._raise_errors = raise_errors
        self._current: Lease | None = None
        self._hand: Hand | None = None
        self._open = True
        self._stack = ExitStack()
        self.runner: Runner | None = None
        self.runs: list[Run] = []

    def __enter__(self) -> "Round":
        self._stack.enter_context(capturing())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._settle()
        unstarted = [*self._waiting] if self._current is None else [self._current, *self._waiting]
        if unstarted:
            self._holder.release(unstarted)
        self._stack.close()

    def __iter__(self) -> Iterator[Lease]:
        while True:
            if not self._waiting:
                self._waiting.extend(self._more())
            if not self._waiting:
                return
            if self._before + len(self.runs) >= self._bound:
                raise RuntimeError(self._endless(self._waiting[0].task))
            self._current = self._waiting.popleft()
            yield self._current

    def take(self, lease: Lease) -> tuple[Hand, Variables]:
        """Begin a run: where it takes place, and the context variables it sees."""
        hand = self._hand = self._holder.hands[lease.number] = Hand()
        return hand, self.variables()

    def variables(self) -> Variables:
        """Context variables for what belongs to this round: a run, or the app's lifespan."""
        variables = self._holder.variables.copy()
        variables.run(_inside.set, self)
        return variables

    def ended(self) -> None:
        """The run is over. Raises what its handler has raised, if that is wanted, or if it was not meant for us."""
        run = self._settle()
        if run is None or run.error is None:
            return
        if not isinstance(run.error, HANDLERS_OWN):
            raise run.error
        if self._raise_errors and (error := surprising(run)) is not None:
            raise error

    def is_open(self, holder: Holder) -> bool:
        """Whether it goes on, and will run what its worker is given."""
        return self._open and self._holder is holder

    def _endless(self, task: str) -> str:
        return (
            f"{self._bound} runs, and there is still a job that is due ({task}): do jobs enqueue each other for ever?"
            " A job that puts itself off with run_at=datetime.now() + … does: the host's clock does not move with"
            f" jobs.advance(); delay=… means the same, and does. {self._remedy}"
        )

    def _settle(self) -> Run | None:
        lease, hand = self._current, self._hand
        if lease is None or hand is None:
            return None
        self._current = self._hand = None
        run = self._holder.settle(lease, hand)
        if run is not None:
            self.runs.append(run)
        return run


_inside: ContextVar[Round | None] = ContextVar("shigoto_test_round", default=None)


def inside() -> Round | None:
    """The round that has called the code that calls this."""
    return _inside.get()
