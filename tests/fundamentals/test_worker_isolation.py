"""Which jobs run in processes of their own, who refuses what cannot, and what suspects do where nobody isolates."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shigoto import Context, DeclarationError, OptionInvalid, Shigoto, State
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.protocol import Capabilities
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.ids import uuid7
from shigoto.model.job import Lease
from shigoto.model.worker import Announcement, Death, Want
from shigoto.observe import events
from shigoto.worker import Stopped, Worker
from shigoto.worker.claimer import _shares
from shigoto.worker.parts import isolation_of
from shigoto.worker.pool import WorkKind
from shigoto.worker.process import RunningJobs, Source
from tests.fundamentals.nursery import Nursery, make
from tests.fundamentals.stage import Stage

CODE = """
@app.task(timeout=5)
def limited() -> None: ...

@app.task
def in_thread() -> None: ...

@app.task
async def on_loop() -> None: ...
"""


@pytest.fixture
def kids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    nursery = make(tmp_path, monkeypatch, CODE)
    yield nursery
    nursery.close()


async def started(worker: Worker) -> None:
    worker.stop()
    await worker.run()


# What cannot run in a child


def test_tasks_that_need_a_child_and_cannot_have_one_are_refused_together(tmp_path: Path) -> None:
    """X14: at the start, with the reason and the remedy for each."""
    app = Shigoto(engine=SqliteEngine(tmp_path / "jobs.db"))

    @app.task(timeout=5)
    def limited() -> None: ...

    @app.task(executor="process", name="declared")
    async def in_process() -> None: ...

    @app.task
    def harmless() -> None: ...

    with pytest.raises(DeclarationError) as caught:
        asyncio.run(Worker(app).run())

    first, second = str(caught.value).splitlines()
    assert first.startswith(
        "task 'limited' needs a process of its own, because it has a timeout, but its app is not"
    )
    assert "Source(reference='module:attr')" in first
    assert second.startswith("task 'declared' needs a process of its own, but its app is not found")


def test_a_function_inside_another_or_of_the_main_program_is_refused(tmp_path: Path, kids: Nursery) -> None:
    @kids.app.task(executor="process")
    def nested() -> None: ...

    def of_main() -> None: ...

    of_main.__module__, of_main.__qualname__ = "__main__", "of_main"
    kids.app.task(executor="process")(of_main)

    with pytest.raises(DeclarationError) as caught:
        isolation_of(kids.app, None, children=1, virtual=False)

    first, second = str(caught.value).splitlines()
    assert "is made inside another; move it to the top level" in first
    assert "is in the main program; move it to a module" in second


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"children": 0}, "children=0"), ({"beats": "loop"}, "virtual time")],
)
def test_a_worker_without_children_refuses_tasks_that_need_them(
    kids: Nursery, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DeclarationError, match=reason):
        asyncio.run(started(kids.worker(**options)))


def test_an_engine_of_one_process_has_no_children() -> None:
    app = Shigoto(engine=MemoryEngine())

    @app.task(timeout=5)
    def limited() -> None: ...

    with pytest.raises(
        DeclarationError, match="the memory engine exists in one process only; use a store that"
    ):
        asyncio.run(Worker(app).run())


def test_an_app_is_found_by_the_module_that_has_it(kids: Nursery, tmp_path: Path) -> None:
    source = Source.of(kids.app)
    assert source is not None
    assert source.reference == f"{kids.module.__name__}:app"
    assert str(tmp_path).encode() in source.path
    assert source.with_modules_of(kids.app).modules == (kids.module.__name__,)
    assert Source.of(Shigoto(engine=MemoryEngine())) is None


def test_a_source_that_is_given_is_believed(kids: Nursery) -> None:
    source = Source(reference="somewhere:app")
    isolation = isolation_of(kids.app, source, children=1, virtual=False)
    assert isolation.source is not None
    assert isolation.source.reference == "somewhere:app"


def test_a_worker_announces_whether_it_isolates(kids: Nursery) -> None:
    seen: list[bool] = []

    async def main() -> None:
        async with kids.working():
            [record] = await kids.app.aworkers()
            seen.append(record.isolates)
            assert record.slots == 100 + kids.worker()._settings.threads + 2

        @kids.app.task
        def nested() -> None: ...

        async with kids.working():
            [record] = await kids.app.aworkers()
            seen.append(record.isolates)

    kids.play(main)
    assert seen == [True, False]


# Who gets which jobs


def lease(number: int, task: str, *, alone: bool) -> Lease:
    return Lease(
        number=number,
        token=1,
        id=uuid7(),
        task=task,
        queue="default",
        payload="{}",
        attempt=1,
        failures=0,
        snoozes=0,
        max_failures=1,
        priority=0,
        run_at=0,
        claimed_at=0,
        alone=alone,
    )


def test_each_lease_goes_to_the_line_that_asked_for_it() -> None:
    class Somewhere:
        pass

    ordinary, children = Somewhere(), Somewhere()
    kinds: list[Any] = [
        WorkKind(ordinary, ["a"], alone=False),  # type: ignore[arg-type]
        WorkKind(children, ["b"], alone=None),  # type: ignore[arg-type]
        WorkKind(children, ["a"], alone=True),  # type: ignore[arg-type]
    ]
    wants = {line: Want(tasks=line.tasks, queues=None, limit=9, alone=line.alone) for line in kinds}
    leases = [
        lease(1, "a", alone=False),
        lease(2, "b", alone=True),
        lease(3, "a", alone=True),
        lease(4, "b", alone=False),
        lease(5, "a", alone=False),
    ]

    shares = _shares(wants, leases)

    assert [[lease.number for lease in shares[line]] for line in kinds] == [[1, 5], [2, 4], [3]]


# Where nobody isolates


class Shared(MemoryEngine):
    """A store that says of itself that other processes can open it."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="shared", durable=False, shared=True, joins=False)


def suspect(stage: Stage, tasks: tuple[str, ...]) -> None:
    """Let the first job crash in a crowd: from now on it should run alone."""
    engine, ghost = stage.engine, uuid7()
    engine.run(engine.announce(announcement(ghost, tasks)))
    [taken] = engine.run(engine.claim(ghost, [Want(tasks=tasks, queues=None, limit=1)]))
    engine.run(engine.report_dead(ghost, [Death(number=taken.number, error="killed")]))


def announcement(id: Any, tasks: tuple[str, ...], *, isolates: bool = False) -> Announcement:
    return Announcement(
        id=id, name="ghost", tasks=tasks, queues=None, slots=1, version="0", lease=10**9, isolates=isolates
    )


def test_in_a_store_of_one_process_a_suspect_runs_at_once() -> None:
    stage = Stage()

    @stage.app.task
    async def work() -> None: ...

    work.enqueue()
    suspect(stage, ("work",))

    assert stage.drain() == Stopped(reason="drained")
    assert stage.job().state is State.COMPLETED


def test_elsewhere_it_waits_for_a_worker_that_isolates_but_not_for_ever() -> None:
    """A18: ten minutes without one, and it runs beside others."""
    stage = Stage(lambda clock: Shared(clock=clock))

    @stage.app.task
    async def work() -> None: ...

    async def main() -> None:
        await work.aenqueue()
        suspect(stage, ("work",))
        other = uuid7()
        await stage.engine.arun(stage.engine.announce(announcement(other, ("work",), isolates=True)))
        async with stage.working():
            await work.aenqueue()
            await stage.until(events.JobCompleted)
            await asyncio.sleep(1_200)
            assert stage.job().state is State.PENDING
            await stage.engine.arun(stage.engine.leave(other))
            left = stage.now
            await stage.until(events.JobCompleted, 2)
            # It asks once a minute, so it may have seen the other for the last time a minute before that left.
            assert 540_000 <= stage.now - left <= 661_000

    stage.play(main)
    assert stage.job().state is State.COMPLETED


def test_a_drain_leaves_suspects_to_others() -> None:
    stage = Stage(lambda clock: Shared(clock=clock))

    @stage.app.task
    async def work() -> None: ...

    work.enqueue()
    suspect(stage, ("work",))

    assert stage.drain() == Stopped(reason="drained")
    assert stage.job().state is State.PENDING


# The memory for the jobs that run


def test_running_jobs_show_what_runs_here_and_what_runs_in_children() -> None:
    created = RunningJobs.create(4)
    assert created.fd is not None
    attached = RunningJobs.attach(created.fd, 4)

    attached.numbers[1] = 42
    attached.numbers[3] = -7

    assert (created.running(), created.in_children()) == ([42], [7])
    attached.numbers[1] = attached.numbers[3] = 0
    assert (created.running(), created.in_children()) == ([], [])
    created.close()
    created.close()


def test_a_worker_writes_down_what_it_runs() -> None:
    stage = Stage()
    running_jobs = RunningJobs.create(200)
    seen: list[bool] = []

    @stage.app.task
    async def on_loop(ctx: Context) -> None:
        seen.append(ctx.number in running_jobs.running())

    @stage.app.task
    def in_thread(ctx: Context) -> None:
        seen.append(ctx.number in running_jobs.running())

    on_loop.enqueue()
    in_thread.enqueue()
    stage.drain_with_threads(running_jobs=running_jobs)

    assert seen == [True, True]
    assert running_jobs.running() == []
    running_jobs.close()


def test_running_jobs_must_have_a_place_for_every_job() -> None:
    stage = Stage()
    with pytest.raises(OptionInvalid, match="running_jobs has 5 places, and this worker needs 132"):
        Worker(
            stage.app,
            concurrency=100,
            threads=30,
            children=2,
            running_jobs=RunningJobs.private(5),
            random=Random(1),
        )
