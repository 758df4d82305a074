"""Runner processes that are replaced while they are well: new code, too many jobs, too much memory."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journeys.yard import SHOP, Yard, ended_within, eventually, runners_of

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the runner processes in /proc"),
]

VERSION = """

@app.task
async def version() -> str:
    import parts
    return parts.VERSION
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


def test_a_runner_that_uses_too_much_memory_is_replaced_when_its_jobs_are_done(yard: Yard) -> None:
    process = yard.start("--max-memory", "150")
    yard.until_at_work(1)
    [runner] = runners_of(process)
    waiting = yard.enqueue("wait", file="go")
    yard.until_it_began()

    assert yard.enqueue("hoard", megabytes=200).result(timeout=20) == runner
    yard.until_logged("is replaced: it uses .* MB of memory")
    assert runners_of(process) == [runner]
    yard.touch("go")

    yard.until_done(waiting)
    eventually(lambda: runners_of(process) not in ([], [runner]), yard.log)
    assert waiting.job().attempt == 1
    assert yard.enqueue("count", number=1).result(timeout=20) != runner
