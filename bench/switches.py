"""Optimisations that can be switched off from outside, one at a time, to see what each buys; see ablation.py.

The source has no switches: each one here replaces something in the modules of this process, for the time of a run. If
what it replaces is gone, it says so.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from msgspec import json
from msgspec.structs import force_setattr

from shigoto import enqueue
from shigoto.codec.arguments import Arguments
from shigoto.engine.op import Op
from shigoto.engine.sql import settling
from shigoto.engine.sql.commands import Steps, Submit, sql
from shigoto.engine.sqlite import claiming, dialect, driver, enqueueing, file
from shigoto.engine.sqlite.driver import Driver
from shigoto.model.ids import uuid7
from shigoto.model.job import Lease
from shigoto.model.worker import Settlement
from shigoto.worker import settler, slots


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[Any]:
    """Something else in its place; the original is given to whoever asks."""
    if name not in vars(owner):
        raise SystemExit(
            f"{owner!r} has no {name!r} any more: bring bench/switches.py in line with the source"
        )
    original = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield original
    finally:
        setattr(owner, name, original)


@contextmanager
def with_other_text(owner: Any, name: str, old: str, new: str) -> Iterator[None]:
    """Another word in a text that is a constant."""
    text: str = vars(owner)[name]
    if old not in text:
        raise SystemExit(
            f"{name} does not say {old!r} any more: bring bench/switches.py in line with the source"
        )
    with replaced(owner, name, text.replace(old, new)):
        yield


@contextmanager
def claims_of_one() -> Iterator[None]:
    want = slots.Slots.want

    def one(self: slots.Slots, now: float, *, buffered: int, running: int) -> int:
        return min(1, want(self, now, buffered=buffered, running=running))

    with replaced(slots.Slots, "want", one):
        yield


def _by_the_general_way(one: Any, op: Op[Any]) -> Any:
    [outcome] = one._transact([op])
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


@contextmanager
def by_a_thread() -> Iterator[None]:
    with ThreadPoolExecutor(1) as executor:

        def run(one: Driver, op: Op[Any]) -> Any:
            return executor.submit(_by_the_general_way, one, op).result()

        with replaced(Driver, "run", run):
            yield


@contextmanager
def payloads_in_json() -> Iterator[None]:
    def with_payloads(text: str, joined: str) -> Steps[list[Lease]]:
        yield from ()
        leases = json.decode(text, type=list[Lease])
        payloads = json.decode(joined, type=list[str])
        for lease, payload in zip(leases, payloads, strict=True):
            force_setattr(lease, "payload", payload)
        return leases

    with ExitStack() as stack:
        beside, inside = "group_concat(b.payload, char(30))", "json_group_array(b.payload)"
        stack.callback(claiming.best.cache_clear)
        stack.enter_context(with_other_text(claiming, "LEASES", beside, inside))
        stack.enter_context(replaced(claiming, "_with_payloads", with_payloads))
        claiming.best.cache_clear()
        yield


@contextmanager
def all_with_results() -> Iterator[None]:
    def write(now: int, worker: UUID, settlements: list[Settlement]) -> Steps[int]:
        rows = json.encode([(s.number, s.token, s.result) for s in settlements]).decode()
        return (yield sql("complete", rows, worker.bytes, now)).rowcount

    with replaced(dialect, "_write", write):
        yield


@contextmanager
def failures_one_by_one() -> Iterator[None]:
    move = settling.move

    def move_each(submit: Submit, now: int, ends: Sequence[Any]) -> Steps[list[Any]]:
        moves: list[Any] = []
        for end in ends:
            moves += yield from move(submit, now, [end])
        return moves

    with replaced(settling, "move", move_each):
        yield


@contextmanager
def own_checkpoints_off() -> Iterator[None]:
    with (
        with_other_text(file, "PRAGMAS", "wal_autocheckpoint = 0", "wal_autocheckpoint = 1000"),
        replaced(file.Checkpointer, "due", lambda self: False),
    ):
        yield


@dataclass(frozen=True)
class Switch:
    """One optimisation less. Where that is so slow that runs would take minutes, there are `fewer` times fewer jobs."""

    off: Callable[[], AbstractContextManager[Any]]
    measures: tuple[str, ...]
    fewer: Mapping[str, int] = field(default_factory=dict[str, int])


DRAINS = ("drain", "drain, threads")
ENQUEUES = ("enqueue, full", "enqueue, normal")

SWITCHES = {
    "each enqueue through what groups need": Switch(
        lambda: replaced(Driver, "_run_directly", lambda one, direct, op: None), ENQUEUES
    ),
    "each enqueue through a database thread": Switch(by_a_thread, ENQUEUES),
    "pages of 4 KiB, not 2": Switch(lambda: replaced(file, "PAGE_SIZE", 4096), (*ENQUEUES, "bulk", "drain")),
    "a log that is cut to nothing, and grows again": Switch(
        lambda: with_other_text(file, "PRAGMAS", "journal_size_limit = {limit}", "journal_size_limit = 0"),
        (*ENQUEUES, "drain"),
    ),
    "SQLite's own checkpoints": Switch(own_checkpoints_off, (*ENQUEUES, "bulk", "drain")),
    "arguments bound and compared by name": Switch(
        lambda: replaced(Arguments, "_encode_quickly", lambda self, args: None), ("bulk",)
    ),
    "ids one by one": Switch(
        lambda: replaced(enqueue, "uuids7", lambda count: [uuid7() for _ in range(count)]), ("bulk",)
    ),
    "a statement for each job of a batch": Switch(
        lambda: replaced(enqueueing, "ROWS_AT_ONCE", (1,)), ("bulk",)
    ),
    "a commit for each op": Switch(
        lambda: replaced(driver, "MAX_GROUP", 1), ("64 callers", *DRAINS), fewer={"64 callers": 8}
    ),
    "a statement for each caller's job": Switch(
        lambda: replaced(
            driver, "_merged", lambda ops, indexes: [(ops[index], [index]) for index in indexes]
        ),
        ("64 callers",),
    ),
    "claims of one job": Switch(claims_of_one, DRAINS, fewer=dict.fromkeys(DRAINS, 40)),
    "no look-ahead": Switch(lambda: replaced(slots, "MOST_AHEAD", 0), DRAINS),
    "payloads inside of the JSON": Switch(payloads_in_json, ("drain", "drain, 10 KB")),
    "large payloads read by calls, not as memory": Switch(
        lambda: replaced(claiming, "MAP_FILE", "SELECT 1"), ("drain, 10 KB",)
    ),
    "settlements one by one": Switch(
        lambda: replaced(settler, "MOST_AT_ONCE", 1), DRAINS, fewer=dict.fromkeys(DRAINS, 40)
    ),
    "runs without a result settled as those with one": Switch(all_with_results, ("drain",)),
    "failures moved one by one": Switch(failures_one_by_one, ("drain, failures",)),
}
