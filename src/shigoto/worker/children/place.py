"""Room for one child process and its job, as the worker sees them."""

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf

from shigoto.context import Lines, Signals
from shigoto.model.job import Lease, LogLine
from shigoto.model.time import Millis
from shigoto.model.worker import Ending, LogTail, Settlement
from shigoto.worker.children.messages import Said
from shigoto.worker.children.process import ChildProcess
from shigoto.worker.limits import Limits, first_of

MOST_LINES = 20  # of what a run has written last, for the report of its crash


class Place:
    """One place of the pool, which is `cell` on the slate. A job that is not `sent` waits for its child, and one that
    has not `begun` has not been run by it.

    `signals` mirrors what the child has: what the handler says is written here when it arrives. `settlement` is the end
    of a run that is not told yet, because its process must be gone first.
    """

    def __init__(
        self,
        limits: Limits,
        time: Callable[[], float],
        *,
        warn: Callable[["Place"], None],
        halt: Callable[["Place", Ending], None],
        cell: int,
    ) -> None:
        self._limits = limits
        self._time = time
        self._warn = warn
        self._halt = halt
        self.cell = cell
        self.child: ChildProcess | None = None
        self.lease: Lease | None = None
        self.signals = Signals()
        self.wanted: Ending | None = None
        self.settlement: Settlement | None = None
        self.sent = False
        self.begun = False
        self.started = 0.0
        self.lines: deque[LogLine] = deque(maxlen=MOST_LINES)
        self.killing: asyncio.TimerHandle | None = None
        self.limit_at = inf
        self._hard_at = inf
        self._softly = False

    @property
    def warmth(self) -> int:
        """How soon a job could start here."""
        return 0 if self.child is None else 1 + self.child.ready

    def take(self, lease: Lease) -> None:
        """Hold this job."""
        self.lease, self.signals, self.wanted, self.settlement = lease, Signals(), None, None
        self.sent = self.begun = False
        self.lines.clear()

    def empty(self) -> None:
        """The job is gone from here."""
        self.lease, self.wanted, self.settlement = None, None, None
        self.sent, self.limit_at = False, inf
        if self.killing is not None:
            self.killing.cancel()
            self.killing = None

    def keep(self, settlement: Settlement) -> None:
        """The run has ended so; tell it later."""
        self.settlement, self.limit_at = settlement, inf

    def is_over_limit(self) -> bool:
        """Whether the run that is here, or was until now, has passed its hard limit."""
        return self._time() >= self._hard_at

    def is_about(self, said: Said) -> bool:
        """Whether the job that runs here has said it."""
        lease = self.lease
        return self.sent and lease is not None and (said.number, said.token) == (lease.number, lease.token)

    def hear(self, said: Said) -> None:
        """What the handler has said."""
        if said.progress is not None:
            self._hear_progress(said.progress, said.progress_text)
            self.signals.progress_changed = True
        self._hear_lines(said.log)

    def hear_last(self, settlement: Settlement) -> None:
        """What came with the end of the run."""
        if settlement.progress is not None:
            self._hear_progress(settlement.progress, settlement.progress_text)
        self._hear_lines(settlement.log)

    def limit(self, hard: Millis | None, soft: Millis | None) -> None:
        """End the run if it takes longer than the hard limit, and say so at the soft one."""
        self.limit_at, self._hard_at, self._softly = first_of(self._time(), hard, soft)
        if self.limit_at < inf:
            self._limits.watch(self.limit_at)

    def time_out(self) -> None:
        """A limit is reached."""
        if self._softly:
            self._softly = False
            self.limit_at = self._hard_at
            self._warn(self)
        else:
            self._halt(self, Ending.ERRORED)

    def _hear_progress(self, progress: float, text: str | None) -> None:
        self.signals.progress, self.signals.progress_text = progress, text or ""

    def _hear_lines(self, tail: LogTail | None) -> None:
        if tail is not None:
            lines = self.signals.lines = self.signals.lines or Lines()
            for line in tail.lines:
                lines.add(line.at, line.level, line.text)
            self.lines.extend(tail.lines)
