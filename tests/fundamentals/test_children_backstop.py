"""Time limits in child processes while the event loop of their worker stands still: the child ends itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto import FailureKind, State
from shigoto.worker import process_pool
from tests.fundamentals.nursery import Nursery, make, own_children

CODE = """
def alive(pid):
    try:
        return "State:\\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@app.task
async def blocks(least: float) -> None:
    # A bad handler: nothing else happens on this event loop until the child is gone.
    while not (FOLDER / "began").exists():
        await asyncio.sleep(0.005)
    pid = int((FOLDER / "began").read_text())
    began = time.monotonic()
    while time.monotonic() - began < 15 and (alive(pid) or time.monotonic() - began < least):
        time.sleep(0.005)
    note("blocked", time.monotonic() - began)


@app.task(timeout=0.5, retries=0, max_crashes=1)
def stands(how: str) -> None:
    note("began", os.getpid())
    match how:
        case "sleep":
            time.sleep(60)
        case "native":
            re.match("(a+)+$", "a" * 64 + "b")
        case "exit":
            time.sleep(0.1)
            os._exit(1)
        case "fault":
            time.sleep(0.1)
            ctypes.string_at(0)


@app.task(executor="process", timeout=0.5, retries=0)
async def stands_on_loop() -> None:
    note("began", os.getpid())
    time.sleep(60)


@app.task(timeout=0.5, retries=0)
def quick() -> int:
    return os.getpid()


@app.task(executor="process", retries=0)
def slow() -> int:
    time.sleep(2)
    return os.getpid()
"""


@pytest.fixture
def kids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    monkeypatch.setattr(process_pool, "GRACE", 0.2)
    monkeypatch.setattr(process_pool, "SLACK", 0.3)
    nursery = make(tmp_path, monkeypatch, CODE)
    yield nursery
    nursery.close()


@pytest.mark.parametrize(
    ("task", "arguments", "place"),
    [
        ("stands", ("sleep",), " in stands"),
        ("stands", ("native",), " in match"),
        ("stands_on_loop", (), " in stands_on_loop"),
    ],
)
def test_a_limit_holds_while_the_event_loop_of_the_worker_is_blocked(
    kids: Nursery, task: str, arguments: tuple[str, ...], place: str
) -> None:
    """S0-71: nor does it count as a crash, for it is none."""
    kids.blocks.enqueue(0.0)
    handle = getattr(kids, task).enqueue(*arguments)

    kids.drain()

    assert float((kids.folder / "blocked").read_text()) < 10
    job = handle.job()
    assert (job.state, job.failure_kind, job.failures, job.crashes) == (
        State.FAILED,
        FailureKind.TIMEOUT,
        1,
        0,
    )
    assert job.error == "TimeoutError: the run took longer than its limit of 0.5 s"
    assert place in (kids.attempts(handle)[0].traceback or "")
    assert own_children() == set()


@pytest.mark.parametrize("how", ["exit", "fault"])
def test_a_crash_that_is_noticed_after_the_limit_is_still_a_crash(kids: Nursery, how: str) -> None:
    """The worker sees the death only when its loop turns again; by then every limit has passed."""
    kids.blocks.enqueue(2.0)
    handle = kids.stands.enqueue(how)

    kids.drain()

    job = handle.job()
    assert (job.state, job.failure_kind, job.crashes) == (State.FAILED, FailureKind.CRASH_LOOP, 1)


def test_a_run_that_ends_in_time_leaves_no_clock_ticking_for_the_next(kids: Nursery) -> None:
    first = kids.quick.enqueue()
    second = kids.slow.enqueue()

    kids.drain(children=1)

    assert first.result() == second.result()
