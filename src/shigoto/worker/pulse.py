"""Whether a worker or a scheduler is ready, and if not, why: a judgement over the signs of its life. Pure.

    stop asked for      red at once, whatever else is well
    runner not there    red until its place is filled by one that is at work
    store               red when it says no, has not answered for ten seconds, or lets nobody write: a program that
                        keeps the file locked holds up every settlement, and whoever only looks does not notice
    claim cycles        red when a runner has finished none for 15 s more than it may wait between two of them: its
                        event loop is blocked, it stands still, or the store does not answer it

A process that is not ready may be quite healthy: it is alive, and waits for its store. Whoever answers at all is alive.
The reasons are for anybody who can reach the port, so they name no address and no job.
"""

from collections.abc import Sequence

from msgspec import Struct

SILENT = 10.0  # seconds without an answer of the store
STUCK = 15.0  # seconds without a claim cycle, beyond the longest wait between two
UNWRITTEN = 8.0  # seconds that a sweep is overdue: a lock that somebody else holds for a moment is normal
LOCKED = "Nothing can be written: somebody keeps the store locked, or it is away."

Readiness = tuple[bool, tuple[str, ...]]  # whether it is ready, and a sentence for all that keeps it from it


class StoreSigns(Struct, frozen=True):
    """How many seconds ago the store has last answered, the code of the error by which it has refused since, and for
    how many seconds a sweep is overdue, where one sweeps."""

    age: float
    refused: str | None = None
    overdue: float = 0.0


class Signs(Struct, frozen=True, kw_only=True):
    """What is known of it now. `missing` are places without a runner at work; `cycles` tells for each that is there how
    many seconds ago it has finished a claim cycle, None if it never has. `poll` is the longest wait between two.
    `details` is what it says of itself."""

    stopping: bool = False
    missing: int = 0
    stores: Sequence[StoreSigns] = ()
    cycles: Sequence[float | None] = ()
    poll: float = 0.0
    details: tuple[str, ...] = ()


def judge(signs: Signs) -> Readiness:
    """Whether it is ready, and why it is not."""
    reasons = ["It was asked to stop."] if signs.stopping else []
    if signs.missing:
        reasons.append(f"{_count(signs.missing, 'runner process', 'runner processes')} not at work yet.")
    reasons += dict.fromkeys(text for store in signs.stores if (text := _of_store(store)) is not None)
    fresh = [age for age in signs.cycles if age is not None]
    if len(fresh) < len(signs.cycles):
        reasons.append("No claim cycle has ended yet.")
    if fresh and max(fresh) > signs.poll + STUCK:
        reasons.append(f"No claim cycle has ended for {max(fresh):.0f} s.")
    reasons += signs.details
    return not reasons, tuple(reasons)


def _of_store(signs: StoreSigns) -> str | None:
    if signs.refused is not None:
        return f"The store cannot be used ({signs.refused})."
    if signs.age > SILENT:
        return f"The store has not answered for {signs.age:.0f} s."
    return LOCKED if signs.overdue > UNWRITTEN else None


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one} is" if number == 1 else f"{number} {many} are"
