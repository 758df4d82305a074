"""Which ticks have fired, by what handlers have written down, held against what was to be expected.

None of it is told by the system: an instant is in the payload of the job that ran for it.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from faults.evidence.records import Record

Instant = int  # milliseconds
Seen = dict[str, dict[Instant, dict[str, float]]]
"""By schedule and instant: the jobs that ran for it, and when each first began, by the ledger's clock."""


def ticks_of(records: Iterable[Record]) -> Seen:
    """The ticks that handlers have been told."""
    seen: Seen = {}
    for record in records:
        if record.what == "start" and record.order:
            jobs = seen.setdefault(record.key, {}).setdefault(int(record.order), {})
            jobs[record.job] = min(record.at, jobs.get(record.job, record.at))
    return seen


class Judgement(Struct, kw_only=True):
    """Ticks by schedule and instant: `doubled` have two jobs, `odd` are none of the schedule's."""

    expected: int = 0
    missing: list[tuple[str, Instant]] = field(default_factory=list)
    doubled: list[tuple[str, Instant]] = field(default_factory=list)
    odd: list[tuple[str, Instant]] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """The same in words."""
        found = {"did not fire": self.missing, "have two jobs": self.doubled, "were no ticks": self.odd}
        return [f"{len(these)} {what}: {these[:3]}" for what, these in found.items() if these]


def judge(seen: Seen, expected: Mapping[str, Sequence[Instant]]) -> Judgement:
    """Held against all that is expected from the first to the last of each; two jobs are wrong at any time."""
    found = Judgement(expected=sum(map(len, expected.values())))
    found.doubled = [
        (name, at) for name, ticks in seen.items() for at, jobs in ticks.items() if len(jobs) > 1
    ]
    for name, instants in expected.items():
        ticks, wanted = seen.get(name, {}), set(instants)
        found.missing += [(name, at) for at in instants if at not in ticks]
        if wanted:
            low, high = min(wanted), max(wanted)
            found.odd += [(name, at) for at in ticks if low <= at <= high and at not in wanted]
    return found


def lateness(seen: Seen, since: Instant, to: Instant, host: float) -> list[float]:
    """By how many seconds the first handlers of ticks in this time began late; `host` is the wall clock's lead over
    the ledger's."""
    return sorted(
        min(jobs.values()) + host - at / 1000
        for ticks in seen.values()
        for at, jobs in ticks.items()
        if since <= at <= to
    )
