"""Runs in child processes that were told to end and gave in: nothing of them is left when their end is told."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto import State
from shigoto.observe import events
from tests.fundamentals.nursery import Nursery, alive, make, own_children, until

CODE = """
import atexit


@app.task(executor="process", retry=Retry.immediate(retries=1), max_crashes=1)
def leaves_behind(ctx: Context, what: str) -> str:
    if ctx.failures:
        return "again"
    # Whoever is asked to leave takes his time.
    atexit.register(time.sleep, 5)
    left = [os.getpid()]
    if what == "thread":
        threading.Thread(target=time.sleep, args=(60,)).start()
    else:
        left.append(subprocess.Popen(["sleep", "60"]).pid)
    note("left", " ".join(map(str, left)))
    time.sleep(60)


@app.task(executor="process")
def quick() -> int:
    return os.getpid()
"""

GONE_WITHIN = 1.0  # real seconds for what is killed to be gone from the list of processes


@pytest.fixture
def kids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    nursery = make(tmp_path, monkeypatch, CODE)
    yield nursery
    nursery.close()


class Witness:
    """Sees, in the very moment when the end of a run is told, what is left of it."""

    def __init__(self, kids: Nursery) -> None:
        self.kids = kids
        self.left: list[int] | None = None
        told = (events.JobRetried, events.JobCancelledEvent, events.JobReleased)
        for kind in told:
            kids.app.bus.subscribe(self._look, kind)

    def _look(self, _: events.Event) -> None:
        deadline = time.monotonic() + GONE_WITHIN
        pids = [int(pid) for pid in (self.kids.folder / "left").read_text().split()]
        while any(map(alive, pids)) and time.monotonic() < deadline:
            time.sleep(0.005)
        self.left = [pid for pid in pids if alive(pid)]


@pytest.mark.parametrize("what", ["thread", "subprocess"])
@pytest.mark.parametrize("why", ["limit", "soft limit"])
def test_a_run_that_gave_in_to_a_limit_is_told_of_when_nothing_of_it_is_left(
    kids: Nursery, what: str, why: str
) -> None:
    """X6: the next run of a job never overlaps with what an earlier one has left behind."""
    witness = Witness(kids)
    limits = {"timeout": 0.3} if why == "limit" else {"soft_timeout": 0.3}
    handle = kids.leaves_behind.using(**limits).enqueue(what)

    kids.drain()

    assert witness.left == []
    job = handle.job()
    assert (job.state, job.failures, job.crashes) == (State.COMPLETED, 1, 0)
    assert own_children() == set()


@pytest.mark.parametrize("what", ["thread", "subprocess"])
@pytest.mark.parametrize("why", ["cancel", "stop"])
def test_a_run_that_gave_in_to_a_cancel_or_a_stop_is_told_of_when_nothing_of_it_is_left(
    kids: Nursery, what: str, why: str
) -> None:
    """X6."""
    witness = Witness(kids)
    handle = kids.leaves_behind.enqueue(what)

    async def main() -> None:
        worker = kids.worker(stop_timeout=1.4)
        run = asyncio.create_task(worker.run())
        await until((kids.folder / "left").exists)
        if why == "cancel":
            await handle.acancel()
            await kids.until(events.JobCancelledEvent)
        worker.stop()
        await run

    kids.play(main)

    assert witness.left == []
    job = handle.job()
    assert job.state is (State.CANCELLED if why == "cancel" else State.PENDING)
    assert (job.failures, job.crashes, job.releases) == (0, 0, int(why == "stop"))
    assert own_children() == set()


def test_the_place_of_a_run_that_was_ended_is_filled_again(kids: Nursery) -> None:
    kids.leaves_behind.using(timeout=0.3, retries=0).enqueue("thread")
    handles = [kids.quick.enqueue() for _ in range(3)]

    kids.drain(children=1)

    assert {handle.job().state for handle in handles} == {State.COMPLETED}
    assert len({handle.result() for handle in handles}) == 1
