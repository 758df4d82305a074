"""The state machine: every way a job may move, and the one function that says where a settled run goes.

    ∅ ──────────────► pending ◄───────────────┐        T1 enqueue            T11 cancel a pending job
    ∅ ──► blocked ──►    │                    │        T2 claim              T12 cancel a running job (a request)
            │            ▼                    │        T4 completed          T13 any end but success, once asked
            │        processing ──────────────┤        T5 errored, retry     T15 operator's retry
            │        │   │   │                │        T6 failed             T16 expired
            ▼        ▼   ▼   ▼                │        T7 snoozed            T18 pruned
        cancelled completed failed ───────────┘        T8 released           T19-T21 blocked
                                                       T9, T10 crashed

Engines ask `after` under the lock that guards the row, so that reading the counters and writing the new ones is one
step. Three more numbers stand for what is no arrow of its own: T3 a report of a run, T14 a forced cancel, T17 an
enqueue whose key a job already holds.
"""

from typing import Literal, assert_never

from msgspec import Struct
from msgspec.structs import replace

from shigoto.model.errors import JobNotRetryable
from shigoto.model.job import FailureKind, KeyMode, State
from shigoto.model.time import Millis
from shigoto.model.worker import Death, Ending, Settlement

MOVES: dict[State | None, frozenset[State | None]] = {
    None: frozenset({State.PENDING, State.BLOCKED}),
    State.BLOCKED: frozenset({State.PENDING, State.CANCELLED, State.FAILED}),
    State.PENDING: frozenset({State.PENDING, State.PROCESSING, State.CANCELLED, State.FAILED, None}),
    State.PROCESSING: frozenset(
        {State.PROCESSING, State.PENDING, State.COMPLETED, State.FAILED, State.CANCELLED}
    ),
    State.COMPLETED: frozenset({None}),
    State.FAILED: frozenset({State.PENDING, None}),
    State.CANCELLED: frozenset({State.PENDING, None}),
}

# What an operator may delete, with those first that have ended.
DELETABLE: tuple[State, ...] = tuple(
    sorted((state for state in State if None in MOVES[state]), key=lambda state: not state.terminal)
)

MAX_SNOOZES = 1_000
CRASH_DELAY: Millis = 10_000


class Counters(Struct, frozen=True, array_like=True):
    """What a job remembers of its earlier runs; it travels with the job from row to row."""

    failures: int = 0
    crashes: int = 0
    solo_crashes: int = 0
    releases: int = 0
    snoozes: int = 0
    solo: bool = False


class Held(Struct, frozen=True):
    """The parts of a processing row that decide where it goes next."""

    counters: Counters
    max_failures: int
    max_crashes: int | None
    cancel_requested: bool = False
    superseded: bool = False


class Move(Struct, frozen=True):
    """Where a processing job goes: its new state and counters, and, if pending, how it becomes due.

    `delay` None keeps the job's run_at; a number dates it from now.
    """

    state: State
    counters: Counters
    failure_kind: FailureKind | None = None
    delay: Millis | None = None


def attempt(token: int, counters: Counters) -> int:
    """Claims that were not given back."""
    return token - counters.releases - counters.snoozes


def renewed(counters: Counters) -> Counters:
    """A fresh budget for a job that starts over (T15, T17).

    Suspicion stays: whoever may have killed a crowd is watched until a clean run clears it. Snoozes that are forgotten
    go on counting as given back, else the attempts would jump.
    """
    return replace(
        counters, failures=0, solo_crashes=0, snoozes=0, releases=counters.releases + counters.snoozes
    )


def meeting(mode: KeyMode, holder: State) -> Literal["inserted", "existing", "replaced", "superseded"]:
    """What an enqueue comes to whose key a job in this state holds (rule A1): whether it is stored beside the holder,
    which is superseded if it runs, or answered with it, or put in its place."""
    if mode == "unsafe_dedupe" or (mode == "keep" and not holder.terminal):
        return "existing"
    if holder.terminal:
        return "inserted"
    return "superseded" if holder is State.PROCESSING else "replaced"


def after(held: Held, settlement: Settlement) -> Move:
    """Where the job goes when its run ended so (T4-T10, T13)."""
    if settlement.ending is Ending.COMPLETED:
        return Move(State.COMPLETED, _cleared(held.counters))
    move = _unless_cancelled(held, settlement)
    if held.cancel_requested:
        return Move(State.CANCELLED, move.counters)
    if held.superseded and move.state is State.PENDING:
        # Its key has moved to a newer job: a second run would do the replaced work after the new.
        return Move(State.FAILED, move.counters, FailureKind.SUPERSEDED)
    return move


def _unless_cancelled(held: Held, settlement: Settlement) -> Move:
    was = held.counters
    match settlement.ending:
        case Ending.COMPLETED:
            raise AssertionError("decided by the caller")
        case Ending.ERRORED:
            counters = replace(_cleared(was), failures=was.failures + 1)
            if counters.failures < held.max_failures:
                return Move(State.PENDING, counters, delay=settlement.delay or 0)
            return Move(State.FAILED, counters, settlement.failure_kind)
        case Ending.FAILED:
            return Move(State.FAILED, replace(was, failures=was.failures + 1), settlement.failure_kind)
        case Ending.SNOOZED:
            counters = replace(_cleared(was), snoozes=was.snoozes + 1)
            if counters.snoozes > MAX_SNOOZES:
                return Move(State.FAILED, counters, FailureKind.SNOOZED_OUT)
            return Move(State.PENDING, counters, delay=settlement.delay or 0)
        case Ending.RELEASED:
            return Move(State.PENDING, replace(was, releases=was.releases + 1), delay=settlement.delay)
        case Ending.CANCELLED:
            return Move(State.CANCELLED, was)
        case Ending.CRASHED:
            return _crashed(held, settlement)
        case _:
            assert_never(settlement.ending)


def _crashed(held: Held, settlement: Settlement) -> Move:
    """A crash makes the job a suspect: it runs alone from now on, and only deaths while alone count against it."""
    was = held.counters
    solo_crashes = was.solo_crashes + (1 if settlement.alone else 0)
    counters = replace(was, crashes=was.crashes + 1, solo=True, solo_crashes=solo_crashes)
    if held.max_crashes is not None and solo_crashes >= held.max_crashes:
        return Move(State.FAILED, counters, FailureKind.CRASH_LOOP)
    return Move(State.PENDING, counters, delay=settlement.delay)


def _cleared(was: Counters) -> Counters:
    """A run that came back has not killed anybody."""
    return replace(was, solo=False, solo_crashes=0) if was.solo else was


def not_retryable(called: str, state: State) -> JobNotRetryable:
    """Why the job that is called so cannot be retried (T15)."""
    remedy = "Use rerun, which makes a new job like it." if state.terminal else "It goes on by itself."
    return JobNotRetryable(f"{called} is {state}; only failed and cancelled jobs can be retried. {remedy}")


# What the store itself says of a run, when its worker cannot or must not.


def died(number: int, token: int, queue: str, death: Death | None) -> Settlement:
    """The end of a run whose worker's process is known to have ended, with or without it running."""
    if death is None:
        return Settlement(number=number, token=token, queue=queue, ending=Ending.RELEASED, ran=False)
    return Settlement(
        number=number,
        token=token,
        queue=queue,
        ending=Ending.CRASHED,
        error=death.error,
        traceback=death.traceback,
        delay=death.delay,
        alone=death.alone,
    )


def orphaned(
    number: int, token: int, queue: str, counters: Counters, *, worker: str | None, isolates: bool, only: bool
) -> Settlement:
    """The end of a run whose worker is gone: fenced (T10), or without a name, because it is not known any more.

    That one has left in peace, or was reported dead with all it had: what appears after that was claimed by a process
    that has ended since, and never ran (T8).

    A suspect that was the `only` job of its worker has most likely taken the worker with it. One that had others around
    it is not blamed, for it was kept apart from them. But a worker that cannot isolate has run its suspects beside
    others, because nobody else would run them; then this is the only death by which a poison job can be told from its
    neighbours.
    """
    if worker is None:
        return Settlement(number=number, token=token, queue=queue, ending=Ending.RELEASED, ran=False)
    alone = counters.solo and (only or not isolates)
    return Settlement(
        number=number,
        token=token,
        queue=queue,
        ending=Ending.CRASHED,
        error=f"the worker {worker} did not beat for its whole lease and was fenced",
        alone=alone,
        delay=CRASH_DELAY if alone else None,
    )


def forced(number: int, token: int, queue: str) -> Settlement:
    """The end of a run that an operator takes from its worker (T14)."""
    return Settlement(
        number=number,
        token=token,
        queue=queue,
        ending=Ending.CANCELLED,
        error="cancelled by force; its effects may have happened",
    )


def unknown_to_all(task: str, waited: Millis) -> str:
    """The error of a job that was never started because nobody knows how."""
    return (
        f"no registered worker has known the task {task!r} for more than {waited / 1000:g} s;"
        " start one whose app has it, then retry the job"
    )
