"""One filter language at every command, while a real worker works: pause, list, cancel, retry, clear."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto import State
from tests.journeys.yard import SHIGOTO, Yard, eventually

SHOP = """
import asyncio
from pathlib import Path

from shigoto import Shigoto

app = Shigoto("sqlite:///shop.db")

@app.task
async def sell(item: str, store: int) -> str:
    if not Path("restocked").exists():
        raise ConnectionError(f"store {store} refused {item}")
    return f"sold {item}"

@app.task(queue="mail")
async def wait() -> None:
    await asyncio.sleep(600)
"""


class Counter(Yard):
    """A yard, and somebody who types commands."""

    def run(self, *words: str) -> str:
        """What a command prints; it must succeed."""
        done = subprocess.run(
            [*SHIGOTO, words[0], "shop.db", *words[1:]],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def sell(self, item: str, store: int) -> None:
        self.app.enqueue_by_name("sell", {"item": item, "store": store}, allow_unknown=True, retries=0)

    def numbers(self, *words: str) -> list[int]:
        return [job["number"] for job in json.loads(self.run("list", *words, "--json"))]

    def until_count(self, state: State, count: int) -> None:
        eventually(lambda: self.app.count(state=state) == count, self.log)


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[Counter]:
    counter = Counter(tmp_path, SHOP)
    yield counter
    counter.end()


def test_jobs_are_found_retried_cancelled_and_cleared_by_one_language(counter: Counter) -> None:
    """S0-41, S0-46, S0-72"""
    counter.start()
    counter.until_at_work(1)
    for store in (7, 7, 8):
        counter.sell("tea", store)
    counter.until_count(State.FAILED, 3)
    assert counter.numbers("failed", "args.store:7", "error:REFUSED") == [2, 1]

    counter.touch("restocked")
    assert counter.run("retry", "args.store:7", "--yes") == "2 of 2 failed jobs retried.\n"
    counter.until_count(State.COMPLETED, 2)

    assert counter.run("pause", "mail").startswith("Queue mail is paused. No job was ever in it")
    counter.app.enqueue_by_name("wait", {}, allow_unknown=True, queue="mail")
    counter.sell("milk", 9)
    counter.until_count(State.COMPLETED, 3)
    assert counter.numbers("queue:mail") == [4]
    assert counter.run("resume", "mail") == "Queue mail is open again: 1 pending.\n"
    counter.until_count(State.PROCESSING, 1)

    [worker] = counter.app.workers()
    assert counter.numbers(f"worker:{worker.name}") == [4]
    assert counter.run("cancel", "queue:mail", "--yes") == (
        "0 of 1 job cancelled, 1 running asked to stop.\n"
    )
    counter.until_count(State.CANCELLED, 1)

    assert counter.run("clear", "completed", "args.store:7") == "2 completed jobs deleted.\n"
    assert counter.run("clear", "completed") == "1 completed job deleted.\n"
    assert counter.numbers("all") == [4, 3]
