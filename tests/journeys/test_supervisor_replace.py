"""Runner processes that are replaced while they are well: new code, too many jobs, too much memory."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto import State
from tests.journeys.yard import SHOP, Yard, ended_within, eventually, is_alive, runners_of

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the runner processes in /proc"),
]

VERSION = """

@app.task
async def version() -> str:
    import parts
    return parts.VERSION

@app.task
async def told(ctx: Context, seconds: float) -> list[object]:
    note("began")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await asyncio.sleep(0.05)
    return [os.getpid(), ctx.stopping]
"""


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path, SHOP + VERSION)
    yield yard
    yard.end()


def test_new_code_is_loaded_and_a_mistake_in_it_waits_for_the_next_change(yard: Yard) -> None:
    (yard.folder / "parts.py").write_text("VERSION = 'one'\n")
    process = yard.start("--reload")
    assert yard.enqueue("version").result(timeout=20) == "one"

    replace(yard, "parts.py", "VERSION = 'two, and longer'\n")
    assert yard.enqueue("version").result(timeout=20) == "two, and longer"
    (yard.folder / "shop.py").write_text(SHOP + VERSION + "\nthis is no Python\n")
    yard.until_logged("could not begin.*SyntaxError")
    handle = yard.enqueue("version")
    (yard.folder / "shop.py").write_text(SHOP + VERSION + "\n# mended\n")

    assert handle.result(timeout=20) == "two, and longer"
    process.send_signal(signal.SIGTERM)
    assert ended_within(process, 3) == 0


def replace(yard: Yard, file: str, text: str) -> None:
    """Write new code, and wait until it is loaded."""
    before = yard.log().count("Tasks:")
    (yard.folder / file).write_text(text)
    yard.until_logged("Tasks:", times=before + 1)


def test_with_reload_an_app_that_cannot_be_loaded_at_first_is_waited_for(yard: Yard) -> None:
    (yard.folder / "shop.py").write_text("import parts\n" + SHOP)
    process = yard.start("--reload")
    yard.until_logged("No module named 'parts'")

    (yard.folder / "parts.py").touch()

    yard.until_done(yard.enqueue("count", number=1))
    assert process.poll() is None


def test_a_runner_is_replaced_after_so_many_jobs(yard: Yard) -> None:
    handles = [yard.enqueue("count", number=number) for number in range(1, 31)]

    process = yard.start("--max-jobs", "10", "--concurrency", "4")

    yard.until_done(*handles)
    pids = [handle.result() for handle in handles]
    assert len(set(map(str, pids))) >= 3
    assert all(handle.job().attempt == 1 for handle in handles)
    assert process.poll() is None


def test_a_runner_that_has_run_enough_jobs_finishes_what_runs_however_long_it_takes(yard: Yard) -> None:
    """The job runs for longer than a stop would let it, and its worker's place is taken at once."""
    long = yard.enqueue("told", seconds=4.0)
    process = yard.start("--max-jobs", "1", "--stop-timeout", "1", "--concurrency", "2")
    yard.until_it_began()
    [runner] = runners_of(process)

    assert yard.enqueue("count", number=1).result(timeout=20) == runner

    assert yard.enqueue("count", number=2).result(timeout=20) != runner
    assert long.status() is State.PROCESSING
    assert long.result(timeout=20) == [runner, False]
    assert long.job().attempt == 1
    eventually(lambda: not is_alive(runner), yard.log, within=5)
    assert "did not end in time" not in yard.log()


def test_a_runner_that_uses_too_much_memory_finishes_what_runs_however_long_it_takes(yard: Yard) -> None:
    process = yard.start("--max-memory", "150", "--stop-timeout", "1")
    yard.until_at_work(1)
    [runner] = runners_of(process)
    long = yard.enqueue("told", seconds=5.0)
    yard.until_it_began()

    assert yard.enqueue("hoard", megabytes=200).result(timeout=20) == runner
    yard.until_logged("is replaced: it uses .* MB of memory")

    eventually(lambda: len(runners_of(process)) == 2, yard.log)
    eventually(lambda: len(set(yard.workers())) == 2, yard.log)
    assert yard.enqueue("count", number=1).result(timeout=20) != runner
    assert long.result(timeout=20) == [runner, False]
    assert long.job().attempt == 1
    eventually(lambda: runner not in runners_of(process), yard.log, within=5)


def test_a_stop_ends_runners_that_only_finish_their_jobs_too(yard: Yard) -> None:
    waiting = yard.enqueue("wait", file="never")
    process = yard.start("--max-jobs", "1", "--stop-timeout", "3")
    yard.until_it_began()
    assert yard.enqueue("count", number=1).result(timeout=20) in runners_of(process)
    yard.until_logged("started worker=", times=2)
    family = runners_of(process)
    assert len(family) == 2

    process.send_signal(signal.SIGTERM)

    assert ended_within(process, 3) == 0
    assert not any(map(is_alive, family))
    assert (waiting.status(), waiting.job().releases) == (State.PENDING, 1)
    assert yard.workers() == []
