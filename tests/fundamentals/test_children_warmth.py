"""How long child processes are kept that have nothing to do."""

import asyncio
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path

import pytest

from shigoto.observe import events
from shigoto.worker import parts, process_pool
from shigoto.worker.process import RunningJobs
from shigoto.worker.process_pool import IdleChildren
from tests.fundamentals.nursery import Nursery, make, own_children
from tests.journeys.yard import eventually

pytestmark = pytest.mark.engine("sqlite")

CODE = """
@app.task
async def plain() -> None: ...

@app.task(executor="process")
def apart() -> None: ...
"""
WITHOUT_PROCESSES = CODE.partition("@app.task(")[0]


class TestIdleChildren:
    def test_nothing_is_kept_unless_somebody_asks(self) -> None:
        assert not IdleChildren(lambda: 5.0).wanted
        assert IdleChildren(lambda: 5.0).over

    def test_one_is_ready_for_as_long_as_was_asked(self) -> None:
        now = 5.0
        kept = IdleChildren(lambda: now)
        kept.want(10.0)
        kept.want(3.0)

        now = 14.9
        assert (kept.wanted, kept.over) == (True, False)
        now = 15.0
        assert (kept.wanted, kept.over) == (False, True)

    def test_one_that_was_used_is_kept_but_not_replaced(self) -> None:
        now = 5.0
        kept = IdleChildren(lambda: now)
        kept.use()

        assert (kept.wanted, kept.over) == (False, False)
        now += process_pool.KEPT_FOR
        assert kept.over

    def test_for_ever_is_for_ever(self) -> None:
        kept = IdleChildren(lambda: 1e9)
        kept.want(inf)

        assert (kept.wanted, kept.over) == (True, False)


@pytest.fixture
def open_nursery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Nursery]]:
    opened: list[Nursery] = []

    def open_one(code: str) -> Nursery:
        opened.append(make(tmp_path, monkeypatch, code))
        return opened[-1]

    yield open_one
    for kids in opened:
        kids.close()


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(eventually, condition, within=20)


def test_a_supervised_worker_has_a_child_ready_while_it_has_work_and_none_when_it_is_idle(
    open_nursery: Callable[[str], Nursery], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "READY_CHILD_AFTER", 0.0)
    monkeypatch.setattr(parts, "READY_CHILD_FOR", 1.0)
    kids = open_nursery(WITHOUT_PROCESSES)

    async def main() -> None:
        worker = kids.worker(running_jobs=RunningJobs.create(1_000))
        run = asyncio.create_task(worker.run())
        await kids.until(events.WorkerStarted)
        assert own_children() == set(), "nobody needs one yet"

        await kids.plain.aenqueue()
        await until(lambda: len(own_children()) == 1)
        await until(lambda: own_children() == set())

        worker.stop()
        await run

    kids.play(main)


def test_a_child_is_always_ready_for_tasks_that_need_one(
    open_nursery: Callable[[str], Nursery], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "KEPT_FOR", 0.0)
    kids = open_nursery(CODE)

    async def main() -> None:
        worker = kids.worker()
        run = asyncio.create_task(worker.run())
        await until(lambda: len(own_children()) == 1)
        [child] = own_children()
        for _ in range(3):
            handle = await kids.apart.aenqueue()
            await handle.aresult(timeout=20)

        assert own_children() == {child}
        worker.stop()
        await run

    kids.play(main)
