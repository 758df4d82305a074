"""Ops and what drives them: errors go into the steps, and added or merged steps lose nothing of an op."""

from typing import Any

import pytest

from shigoto.engine.op import Op, OpBatch, Steps, adrive, drive, extended, merged, translate


def steps(seen: list[str]) -> Steps[str]:
    try:
        seen.append((yield "first"))
        try:
            yield "refused"
        except ValueError:
            seen.append("handled")
        return "value"
    finally:
        seen.append("closed")


def execute(command: str) -> str:
    if command == "refused":
        raise ValueError(command)
    return f"answer to {command}"


async def aexecute(command: str) -> str:
    return execute(command)


def execute_by_steps(command: str) -> Steps[str]:
    answer: str = yield command
    return answer


EXPECTED = ["answer to first", "handled", "closed"]


async def test_an_error_of_a_command_goes_into_the_steps_which_may_go_on() -> None:
    for_threads: list[str] = []
    for_loops: list[str] = []
    within: list[str] = []

    assert drive(steps(for_threads), execute) == "value"
    assert await adrive(steps(for_loops), aexecute) == "value"
    assert drive(translate(steps(within), execute_by_steps), execute) == "value"

    assert for_threads == for_loops == within == EXPECTED


async def test_an_error_that_is_not_for_the_steps_closes_them() -> None:
    for_threads: list[str] = []
    for_loops: list[str] = []
    within: list[str] = []

    with pytest.raises(ValueError, match="refused"):
        drive(steps(for_threads), execute, KeyError)
    with pytest.raises(ValueError, match="refused"):
        await adrive(steps(for_loops), aexecute, KeyError)
    with pytest.raises(ValueError, match="refused"):
        drive(translate(steps(within), execute_by_steps, KeyError), execute)

    assert for_threads == for_loops == within == ["answer to first", "closed"]


def quick(subject: int, followed: list[int]) -> Op[int]:
    def merge(subjects: list[Any]) -> Op[list[int]]:
        return Op(start=lambda: start(subjects))

    def start(subjects: list[int]) -> Steps[Any]:
        yield "add"
        return subjects

    return Op(
        start=lambda: start([subject]),
        mode="read",
        rings=lambda value: value == 2,
        committed=followed.append,
        deadline=3.0,
        urgent=True,
        batch=OpBatch("number", subject, merge),
        hints=object(),
    )


def test_no_driver_can_leave_out_steps_that_were_added_to_an_op() -> None:
    op = quick(1, [])

    def more() -> Steps[int]:
        return (yield from op.start())

    longer = extended(op, more)

    assert longer.start is more
    assert (longer.batch, longer.hints, longer.mode) == (None, None, "write")
    kept = ("rings", "committed", "deadline", "urgent")
    assert [getattr(longer, name) for name in kept] == [getattr(op, name) for name in kept]


def test_a_merged_op_rings_and_is_followed_up_for_each_of_its_members() -> None:
    followed: list[int] = []
    op = merged([quick(1, followed), quick(2, followed)])

    values = drive(op.start(), lambda command: None)
    assert op.rings is not None
    assert op.committed is not None
    op.committed(values)

    assert values == followed == [1, 2]
    assert op.rings(values)
    assert not op.rings([1, 1])
