"""The ordinary worker, far away from its store: `shigoto --url http://… worker`, through kills and cuts."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.tools.proxy import Pass, Proxy, Refuse, Silent
from shigoto import State
from tests.journeys.far import SHOP, Far
from tests.journeys.yard import ended_within, eventually
from tests.service.ground import keep, key

LEASE = ("--lease", "2", "--poll", "0.2")


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Far]:
    yard = Far(tmp_path)
    yield yard
    yard.end()


def test_ping_gets_picked_up(far: Far) -> None:
    """GWT-12, S3-64."""
    far.serve()
    far.work()
    ping = far.enqueue("ping")

    far.until_done(ping)
    assert ping.result(timeout=1) == "pong"


def test_workers_scale_out_and_each_job_runs_once(far: Far) -> None:
    """S1-5, S1-6: three workers that have no part in the store share the work of one file."""
    far.serve()
    for _ in range(3):
        far.work("--concurrency", "2")
    far.until_at_work(3)
    jobs = [far.enqueue("count", number=number) for number in range(60)]

    far.until_done(*jobs)

    notes = far.notes("ran")
    assert sorted(int(note.split()[-1]) for note in notes) == list(range(60))
    assert len({note.split()[0] for note in notes}) >= 2


def test_a_worker_that_looks_once_a_day_is_called_when_there_is_work(far: Far) -> None:
    """S1-22: polling as rare as that is possible, and push is there for those who want no delay."""
    far.serve()
    far.work("--poll", "86400")
    far.until_at_work(1)
    far.until_logged("ready|Tasks:")

    first = far.enqueue("ping")
    far.until_done(first)
    second = far.enqueue("ping")
    far.until_done(second)


def test_drain_ends_when_there_is_nothing_left(far: Far) -> None:
    far.serve()
    jobs = [far.enqueue("count", number=number) for number in range(50)]

    assert far.work("--drain").wait(30) == 0
    assert all(job.status() is State.COMPLETED for job in jobs)


def test_a_stop_gives_back_what_does_not_end(far: Far) -> None:
    far.serve()
    worker = far.work("--stop-timeout", "1")
    job = far.enqueue("until", file="never")
    far.until_it_began()

    worker.send_signal(signal.SIGTERM)
    ended_within(worker, 10)

    assert job.status() is State.PENDING
    assert far.workers() == []


def test_a_killed_worker_loses_no_job(far: Far) -> None:
    """E01: kill -9 of everything that the worker is; its lease ends, and another one has the job."""
    far.serve()
    victim = far.work(*LEASE)
    job = far.enqueue("until", file="done")
    far.until_it_began()

    os.killpg(victim.pid, signal.SIGKILL)
    far.touch("done")
    far.work(*LEASE)
    far.until_done(job)

    assert len(far.notes("began")) == 2
    assert len(far.notes("ended")) == 1


@pytest.mark.parametrize("queues", [None, ("default",)])
def test_a_zombie_is_refused(far: Far, queues: tuple[str, ...] | None) -> None:
    """A worker that was asleep for longer than its lease comes back to find its job another's, and writes nothing;
    whether its token is for all queues or for some."""
    token = key("work", queues=queues)
    keep(far.app, [token])
    far.url = far.url.replace("://", f"://:{token.text}@")
    far.serve()
    zombie = far.work("--processes", "0", *LEASE)
    job = far.enqueue("until", file="done")
    far.until_it_began()
    os.killpg(zombie.pid, signal.SIGSTOP)
    far.work(*LEASE, log="other-log")
    far.until_it_began(2)
    other = int(far.notes("began")[1].split()[0])
    far.work(*LEASE, log="third-log")  # for a newcomer the server asks the store who is there
    far.until_at_work(2)

    os.killpg(zombie.pid, signal.SIGCONT)
    far.until_logged("(?i)fenced")
    far.touch("done")
    far.until_done(job)

    assert job.result(timeout=1) == other


def test_a_cut_line_costs_no_job(far: Far) -> None:
    """E18 over HTTP: a line that is cut while a job runs, and silent, and refused; the job goes on, and its end is told
    when there is a line again."""
    far.serve()
    with Proxy(far.port) as proxy:
        far.work("--lease", "10", url=f"http://127.0.0.1:{proxy.port}")
        job = far.enqueue("until", file="done")
        far.until_it_began()

        for mode in (Refuse(), Silent()):
            proxy.mode = mode
            proxy.cut()
            far.until_logged("does not answer")
        far.touch("done")
        eventually(lambda: len(far.notes("ended")) == 1, far.log)
        assert job.status() is State.PROCESSING
        proxy.mode = Pass()
        proxy.cut()
        far.until_done(job)
    assert len(far.notes("began")) == 1


def test_a_dead_server_loses_nothing(far: Far) -> None:
    """S1-7, S1-8: what was submitted is in the store, and any other process of the same kind serves it."""
    server = far.serve()
    far.work("--lease", "10")
    running = far.enqueue("until", file="done")
    far.until_it_began()
    os.killpg(server.pid, signal.SIGKILL)
    submitted = far.enqueue("ping")
    far.touch("done")
    far.until_logged("does not answer")

    far.serve()
    far.until_done(running, submitted)
    assert len(far.notes("began")) == 1


def test_two_servers_on_one_file(far: Far, tmp_path: Path) -> None:
    """S1-8: front ends are replaceable; one is killed, and the workers of the other do all that is left."""
    one, other = far.serve(), Far(tmp_path)
    far.serve(other.port)
    far.work(*LEASE)
    far.work(*LEASE, url=other.url, log="other-log")
    far.until_at_work(2)
    jobs = [far.enqueue("count", number=number) for number in range(40)]
    os.killpg(one.pid, signal.SIGKILL)
    other.app.close()

    far.until_done(*jobs)


def test_a_transaction_with_the_job_is_refused_in_clear_words(far: Far) -> None:
    far.serve()
    far.work()
    job = far.app.enqueue_by_name("together", {}, allow_unknown=True, retries=0)

    eventually(lambda: job.status() is State.FAILED, far.log)

    error = job.job().error
    assert error is not None
    assert "has no transaction to share" in error
    assert "opens the database itself" in error


def test_schedules_are_left_to_the_server(tmp_path: Path) -> None:
    """A15: a worker far away fires none, and says so; the server of the same app does."""
    shop = SHOP + "\n@app.every('1s')\nasync def tick() -> None:\n    note('tick')\n"
    far = Far(tmp_path, shop)
    try:
        far.serve()
        far.work()
        far.until_logged("leaves schedules to it: tick")
        eventually(lambda: len(far.notes("tick")) >= 2, far.log)
    finally:
        far.end()


def test_the_commands_work_through_the_server(far: Far) -> None:
    """What people do at a store they can do at its server."""
    far.serve()
    job = far.enqueue("ping")
    shigoto = [*far.command, "--url", far.url]

    def said(*words: str) -> str:
        done = subprocess.run(
            [*shigoto, *words],
            cwd=far.folder,
            env=far.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "ping" in said("list")
    assert str(job.id) in said("show", str(job.id))
    assert "1" in said("stats")
