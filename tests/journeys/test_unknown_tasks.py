"""`Shigoto(unknown_after=…)` in `shigoto worker`: runners load the app, and their supervisor sweeps the store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto import FailureKind, State
from tests.journeys.yard import Yard, eventually

pytestmark = pytest.mark.engine("sqlite")

SHOP = """
from shigoto import Shigoto

app = Shigoto("sqlite:///shop.db", unknown_after={patience})

@app.task
async def known() -> str:
    return "known"
"""


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path, SHOP.format(patience="0.5"))
    yield yard
    yard.end()


@pytest.mark.parametrize("processes", ["1", "0"])
def test_jobs_of_a_task_that_nobody_knows_fail_and_the_log_names_it(yard: Yard, processes: str) -> None:
    """S0-56: an unknown job type is not retried; with a supervisor and without one."""
    unknown, known = yard.enqueue("no_such_task"), yard.enqueue("known")

    yard.start("--lease", "1", "--processes", processes)

    eventually(lambda: unknown.status() is State.FAILED, yard.log)
    job = unknown.job()
    assert (job.failure_kind, job.attempt, job.failures) == (FailureKind.UNKNOWN_TASK, 0, 0)
    assert "no_such_task" in (job.error or "")
    yard.until_done(known)
    yard.until_logged("WARNING .*Jobs failed because no worker knows the task no_such_task")


def test_after_a_reload_the_new_code_says_how_long_they_may_wait(yard: Yard) -> None:
    (yard.folder / "shop.py").write_text(SHOP.format(patience=None))
    unknown = yard.enqueue("no_such_task")
    yard.start("--lease", "1", "--reload")
    yard.until_at_work(1)
    assert unknown.status() is State.PENDING

    # Of another length: a file that changes twice in a second and keeps its size is the same to Python's cache.
    (yard.folder / "shop.py").write_text(SHOP.format(patience="0.250"))

    eventually(lambda: unknown.status() is State.FAILED, yard.log)
