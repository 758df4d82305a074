"""What somebody does at night: looks, cancels, retries, redrives, while a real worker works."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shigoto import State
from tests.journeys.yard import SHIGOTO, Yard, eventually

SHOP = """
import asyncio
import logging
import time
from pathlib import Path

from shigoto import Context, Shigoto

app = Shigoto("sqlite:///shop.db")

@app.task
async def sell(item: str) -> str:
    logging.getLogger("shop").warning("looking for %s", item)
    if not Path("restocked").exists():
        raise ValueError(f"{item} is out of stock")
    return f"sold {item}"

@app.task
async def wait(ctx: Context) -> None:
    ctx.progress(0.25, "waiting for a customer")
    await asyncio.sleep(600)

@app.task
def stubborn(file: str) -> None:
    Path(file + ".begun").touch()
    while not Path(file).exists():
        time.sleep(0.01)
    Path(file + ".ended").touch()
"""


class Night(Yard):
    """A yard with a worker, and somebody who types commands."""

    def work(self) -> None:
        self.start("--name", "anvil")
        self.until_at_work(1)

    def sell(self, item: str) -> None:
        self.app.enqueue_by_name("sell", {"item": item}, allow_unknown=True, retries=0)

    def run(self, *words: str) -> str:
        """What a command prints; it must succeed."""
        done = self._execute(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refusal(self, *words: str) -> str:
        """How a command complains."""
        done = self._execute(*words)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def _execute(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*SHIGOTO, words[0], "shop.db", *words[1:]],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def job(self, number: int) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.run("show", str(number), "--json"))
        return told

    def until_state(self, number: int, state: State) -> dict[str, Any]:
        eventually(
            lambda: any(job.number == number for job in self.app.find(state=state)),
            lambda: f"{self.job(number)} {self.log()}",
        )
        return self.job(number)


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    night = Night(tmp_path, SHOP)
    yield night
    night.end()


def test_jobs_that_failed_are_understood_mended_and_redriven(night: Night) -> None:
    """S0-72: what failed is kept with its errors, and is run again on request."""
    night.work()
    for item in ("tea", "milk", "salt"):
        night.sell(item)
    for number in (1, 2, 3):
        night.until_state(number, State.FAILED)

    shown = night.run("show", "1")
    assert "#1 sell: failed (error)" in shown
    assert 'raise ValueError(f"{item} is out of stock")' in shown
    assert "ValueError: tea is out of stock" in shown
    assert "warning  looking for tea" in shown

    night.touch("restocked")
    assert night.run("retry", "3") == "#3 (sell) is ready again.\n"
    assert night.until_state(3, State.COMPLETED)["job"]["result"] == "sold salt"
    assert "add --yes" in night.refusal("redrive")
    assert night.run("redrive", "--task", "sell", "--yes") == "2 of 2 failed jobs retried.\n"
    told = night.until_state(1, State.COMPLETED)
    assert (told["job"]["attempt"], [run["outcome"] for run in told["attempts"]]) == (2, ["failed"])
    assert [(line["token"], line["text"]) for line in told["logs"]] == [
        (1, "looking for tea"),
        (2, "looking for tea"),
    ]
    night.until_state(2, State.COMPLETED)
    assert "Use rerun" in night.refusal("retry", "1")

    assert night.run("rerun", "1").startswith("#1 (sell) runs again as #4 (")
    assert night.until_state(4, State.COMPLETED)["job"]["result"] == "sold tea"


def test_a_running_job_is_seen_and_cancelled(night: Night) -> None:
    night.work()
    waiting = night.enqueue("wait")
    eventually(lambda: waiting.job().progress == 0.25, night.log)

    shown = night.run("show", "1")
    [worker] = json.loads(night.run("workers", "--json"))
    assert f"attempt 1, on {worker['name']} (process {worker['pid']} on {worker['host']})." in shown
    assert "25%  waiting for a customer" in shown
    assert (worker["processing"], worker["tasks"]) == (1, ["sell", "wait", "stubborn"])
    assert worker["name"] in night.run("workers")
    findings = json.loads(night.run("doctor", "--json"))["findings"]
    assert {finding["check"]: finding["level"] for finding in findings}["workers"] == "ok"

    assert night.run("cancel", "1") == "#1 (wait) is running and was asked to stop.\n"
    night.until_state(1, State.CANCELLED)
    assert night.run("cancel", "1") == "#1 (wait) was cancelled before.\n"


def test_a_job_that_does_not_listen_is_taken_by_force_and_its_late_end_changes_nothing(night: Night) -> None:
    night.work()
    night.enqueue("stubborn", file="go")
    eventually((night.folder / "go.begun").exists, night.log)

    night.run("cancel", "1")
    assert night.job(1)["job"]["state"] == "processing"
    told = night.run("cancel", "1", "--force", "--yes")
    assert told == "#1 (stubborn) is cancelled by force; what it was to do may have happened.\n"
    assert night.job(1)["job"]["state"] == "cancelled"

    night.touch("go")
    eventually((night.folder / "go.ended").exists, night.log)
    night.sell("tea")
    night.until_state(2, State.FAILED)
    assert night.job(1)["job"]["state"] == "cancelled"
