"""A handler may say anything; that it cannot be written down costs nobody a job, least of all somebody else."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from shigoto import Context, Shigoto, State
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.model.worker import Report, Settlement, Verdict
from shigoto.testing.store import VirtualClock
from shigoto.worker import Stopped, Worker
from tests.fundamentals.stage import Stage


class Fastidious(MemoryEngine):
    """A store that cannot write what job 1 says: neither its reports nor its log."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.reported: list[int] = []

    def report(self, worker: UUID, reports: Sequence[Report]) -> Op[list[bool]]:
        if any(report.number == 1 for report in reports):
            raise UnicodeError("this cannot be written")
        self.reported += [report.number for report in reports]
        return super().report(worker, reports)

    def settle(self, worker: UUID, settlements: Sequence[Settlement]) -> Op[list[Verdict]]:
        if any(settlement.number == 1 and settlement.log is not None for settlement in settlements):
            raise UnicodeError("this cannot be written")
        return super().settle(worker, settlements)


def test_one_report_that_cannot_be_written_keeps_no_other_back(caplog: pytest.LogCaptureFixture) -> None:
    engines: list[Fastidious] = []

    def fastidious(clock: VirtualClock) -> Fastidious:
        engines.append(Fastidious(clock))
        return engines[0]

    stage = Stage(fastidious)

    @stage.app.task
    async def talk(ctx: Context) -> str:
        for step in range(3):
            ctx.progress(step / 3)
            ctx.log("on the way")
            await asyncio.sleep(5)
        return "done"

    handles = [talk.enqueue(), talk.enqueue()]
    assert stage.drain() == Stopped(reason="drained")

    assert [handle.job().result for handle in handles] == ['"done"', '"done"']
    assert engines[0].reported.count(2) == 3
    said = [record.getMessage() for record in caplog.records if "What job 1 reports" in record.getMessage()]
    assert len(said) == 1


def test_a_log_that_cannot_be_written_does_not_make_a_success_a_failure() -> None:
    stage = Stage(Fastidious)

    @stage.app.task
    async def talk(ctx: Context) -> str:
        ctx.log("this will not be kept")
        return "done"

    handle = talk.enqueue()
    stage.drain()

    assert (handle.status(), handle.job().result) == (State.COMPLETED, '"done"')


@contextmanager
def unseen() -> Iterator[None]:
    """What is logged goes into no report: test processes cannot tell each other of half a surrogate pair."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:] = handlers


@pytest.mark.parametrize("in_a_block", [True, False])
def test_levels_and_progress_of_any_kind_are_stored_as_far_as_they_can_be(
    tmp_path: Path, in_a_block: bool
) -> None:
    """A level has a name that anybody can give; it is cut, and what no store or terminal can take is spelt out."""
    app = Shigoto(tmp_path / "jobs.db")
    shop = logging.getLogger("shop")
    logging.addLevelName(35, "\x1b[1;31mALERT\ud800")
    logging.addLevelName(36, "L" * 1_000_000)

    @app.task(retries=0)
    def talk(ctx: Context) -> str:
        shop.log(35, "red")
        shop.log(36, "long")
        ctx.progress(0.5, "half \ud800 \x00")
        if in_a_block:
            with ctx.transaction() as tx:
                tx.finish("done")
        return "done"

    handle = talk.enqueue()
    with closing(app), unseen():
        asyncio.run(Worker(app, drain=True).run())
        lines = handle.logs()
        job = handle.job()

    assert (job.state, job.result) == (State.COMPLETED, '"done"')
    assert (job.progress, job.progress_text) == (0.5, "half \\ud800 \\x00")
    assert [line.text for line in lines] == ["red", "long"]
    assert all(len(line.level) <= 20 and line.level.isprintable() for line in lines)
    assert "alert" in lines[0].level
