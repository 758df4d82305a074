"""One seed, lived from its beginning to its end, and judged.

producers ──► lines ──► the store ◄── lines ◄── workers, one process after the other
                          ▲  └── the witness sees every commit
an operator ──────────────┘
"""

import asyncio
from contextlib import ExitStack
from hashlib import blake2b
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from msgspec import Struct

from faults.simulation.book import Book
from faults.simulation.handlers import SCENE, make_app
from faults.simulation.line import Line, Troubles, told_by
from faults.simulation.loop import Loop, Process
from faults.simulation.manners import Manners
from faults.simulation.people import enqueue_all, intervene
from faults.simulation.plan import Intervention, Order, Size, Stint, plan_of
from faults.simulation.store import InFile, InMemory, Store
from faults.simulation.ticks import all_decided, plant
from faults.simulation.waiting import Waiting
from faults.simulation.witness import Witness
from shigoto import Context, Shigoto, State, StoreUnavailable
from shigoto.engine.op import Op
from shigoto.model.ids import uuid7
from shigoto.model.time import Millis
from shigoto.testing.store import START
from shigoto.worker import Worker
from shigoto.worker.process import Source

STOP_TIMEOUT = 28.0
STOP_SLACK = 4.0  # seconds beyond the time-out for a store that does not answer
LONGEST = 6_000.0  # virtual seconds from when all is well until everything must have ended

NOWHERE = Source(
    reference="nowhere:app"
)  # no worker has child processes here, and to look for the app takes long

_apps: list[Shigoto] = []  # made once; each takes longer than a small world


class Verdict(Struct, frozen=True, kw_only=True):
    """How a world went: `wrong` is empty if every promise was kept, `trace` is the same whenever it is lived again."""

    seed: int
    wrong: tuple[str, ...]
    trace: str
    jobs: int
    starts: int
    fences: int
    callbacks: int


class Scene:
    """What handlers in one process find."""

    def __init__(self, world: "World", process: Process, worker: Worker) -> None:
        self.process = process
        self._world = world
        self._worker = worker

    def begins(self, ctx: Context) -> None:
        if self.process.alive:
            self._world.run_began(ctx, self.process, self._worker.id)

    def ends(self, ctx: Context, outcome: str) -> None:
        if self.process.alive:
            self._world.run_ended(ctx, outcome)


class World:
    """Everything there is."""

    def __init__(self, seed: int, *, size: Size = "small", file: Path | None = None) -> None:
        self.plan = plan_of(seed, size)
        self._roomy = self.plan.roomy
        self.wrong: list[str] = []
        self._random = Random(f"{size} life {seed}")
        self._loop = Loop(Random(f"{size} turns {seed}"))
        self._offset: Millis = 0
        self._stepped = False
        self._store: Store = InMemory(self._clock) if file is None else InFile(self._clock, file)
        self._witness = Witness(self._store, self._too_early, self._complain)
        self._troubles = Troubles()
        self._lines: list[Line] = []
        self._apps = iter(range(10_000))
        self._lent = ExitStack()
        self._names = count(1)
        self._homes: dict[UUID, tuple[Process, Line]] = {}
        self._running: dict[tuple[int, int], tuple[Process, str]] = {}
        self._book = Book()
        self._starts = 0
        self._fences = 0
        self._busy = 0
        self._waiting = Waiting(self.plan.poll + self._store.patience + 2)
        self._trace: list[tuple[Any, ...]] = self._witness.trace

    def live(self) -> Verdict:
        """Live through it once."""
        try:
            with self._lent:
                self._loop.live(self._live())
            for what in self._book.judge(self._witness.jobs):
                self._complain(what)
        finally:
            self._store.close()
        self.wrong += [f"something raised: {fault}" for fault in self._loop.faults]
        text = repr(self._trace).encode()
        return Verdict(
            seed=self.plan.seed,
            wrong=tuple(self.wrong),
            trace=blake2b(text, digest_size=12).hexdigest(),
            jobs=len(self._witness.jobs),
            starts=self._starts,
            fences=self._fences,
            callbacks=self._loop.callbacks,
        )

    async def _live(self) -> None:
        self._rest = asyncio.Event()
        plan = self.plan
        self._busy = len(plan.orders) + 2 + plan.ticks
        async with asyncio.TaskGroup() as group:
            group.create_task(self._weather())
            group.create_task(self._operate(plan.interventions))
            if plan.ticks:
                group.create_task(self._tick())
            for orders in plan.orders:
                group.create_task(self._produce(orders))
            for career in plan.careers:
                group.create_task(self._career(career))
            group.create_task(self._watch())

    async def _weather(self) -> None:
        plan, troubles, loop = self.plan, self._troubles, self._loop
        troubles.loss, troubles.twice = plan.loss, plan.twice
        troubles.deaf, troubles.slow = plan.deaf, plan.slow
        troubles.wait = plan.lease / 10
        for at, seconds in plan.outages:
            loop.call_later(at, setattr, troubles, "down", True)
            loop.call_later(at + seconds, setattr, troubles, "down", False)
        for at, by in plan.clock_steps:
            loop.call_later(at, self._step_clock, by)
        await asyncio.sleep(plan.until)
        troubles.loss = troubles.twice = 0.0
        troubles.down = False
        troubles.slow = min(troubles.slow, 0.5)
        self._waiting.calm(loop.time())
        self._one_less()

    async def _watch(self) -> None:
        """Say what has not come to an end in time."""
        await asyncio.sleep(self.plan.until)
        try:
            async with asyncio.timeout(LONGEST + 3 * self._store.patience):
                await self._rest.wait()
        except TimeoutError:
            left = {
                number: job.state.value
                for number, job in self._witness.jobs.items()
                if not job.state.terminal
            }
            self._complain(f"jobs have not ended, long after all was well: {left} (I16)")
            self._rest.set()

    async def _career(self, stints: tuple[Stint, ...]) -> None:
        """Processes come and go; the last one stays until all is done."""
        for stint in stints:
            await self._serve(stint)
        last = Stint(0.0, "stop", None, self.plan.last_concurrency)
        self._waiting.staffed(self._loop.time())
        while not self._rest.is_set():
            await self._serve(last)
            await asyncio.sleep(0.5)

    async def _serve(self, stint: Stint) -> None:
        process, line, app = self._process()
        random = Random(f"{self.plan.seed} {process.name}")
        worker = Worker(
            app,
            name=process.name,
            queues=stint.queues,
            concurrency=stint.concurrency,
            lease=self.plan.lease,
            poll=self.plan.poll,
            beats="loop",
            random=random,
            stop_timeout=STOP_TIMEOUT,
            source=NOWHERE,
            ticks=self.plan.ticks,
        )
        worker.id = uuid7(START, random.randbytes(10))
        self._homes[worker.id] = process, line
        process.context.run(SCENE.set, Scene(self, process, worker))
        run = process.start(worker.run())
        for accident in stint.accidents:
            if accident.what == "pause":
                self._loop.call_later(accident.at, process.pause, accident.seconds)
            else:
                self._loop.call_later(accident.at, line.cut)
                self._loop.call_later(accident.at + accident.seconds, line.mend)
        await self._let_run(run, stint.seconds)
        await self._end(process, worker, run, stint, random)

    async def _let_run(self, run: "asyncio.Task[Any]", seconds: float) -> None:
        """Until its time is over; without one, until all is done."""
        resting = asyncio.create_task(self._rest.wait()) if not seconds else None
        await asyncio.wait(
            [run] if resting is None else [run, resting],
            timeout=seconds or None,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if resting is not None:
            resting.cancel()

    async def _end(
        self, process: Process, worker: Worker, run: "asyncio.Task[Any]", stint: Stint, random: Random
    ) -> None:
        if stint.end == "kill":
            self._note("kill", process.name)
        elif stint.end == "cancel":
            run.cancel()
        else:
            worker.stop()
            if stint.end == "hurry":
                # One that has ended by then is gone, not lingering: what does not live may be fenced.
                await asyncio.wait([run], timeout=random.random() * 10)
                worker.stop()
        if stint.end != "kill":
            await process.going_on()
            asked_at = self._loop.time()
            await asyncio.wait([run], timeout=STOP_TIMEOUT + STOP_SLACK + 60 * process.was_paused)
            if not run.done():
                self._complain(f"{process.name} did not stop within {self._loop.time() - asked_at:g} s (I14)")
        self._report_dead(process)
        if not run.done():
            run.cancel()
        elif not run.cancelled() and not isinstance(error := run.exception(), StoreUnavailable | None):
            self._complain(f"{process.name} failed: {error!r}")

    def _report_dead(self, process: Process) -> None:
        process.alive = False
        for lease, (where, _) in list(self._running.items()):
            if where is process:
                del self._running[lease]

    async def _produce(self, orders: tuple[Order, ...]) -> None:
        process, _, app = self._process()
        random = Random(f"{self.plan.seed} {process.name}")
        await process.start(enqueue_all(app, orders, random, self._book))
        self._one_less()

    async def _operate(self, interventions: tuple[Intervention, ...]) -> None:
        process, line, _ = self._process()
        await process.start(intervene(line, interventions, self._ids, self._book))
        self._one_less()

    async def _tick(self) -> None:
        engine = self._store.engine
        plant(engine, self.plan.until, self._random, self._book)
        await all_decided(engine, self._rest.is_set)
        self._one_less()

    def _ids(self) -> list[UUID]:
        return [job.id for job in self._witness.jobs.values()]

    def _process(self) -> tuple[Process, Line, Shigoto]:
        """A new process, its line to the store, and the app in it."""
        process = Process(self._loop, f"p{next(self._names)}")
        manners = Manners(self.plan.lease)
        line = Line(
            self._loop,
            process,
            self._store.engine,
            self._troubles,
            self._commit,
            Random(f"{self.plan.seed} line of {process.name}"),
            manners=manners,
            complain=lambda problem: self._complain(f"{process.name} {problem}"),
        )
        self._lines.append(line)
        number = next(self._apps)
        if number == len(_apps):
            _apps.append(make_app())
        self._lent.enter_context(_apps[number].lend(line, "sqlite:simulated"))
        return process, line, _apps[number]

    def _commit(self, op: Op[Any], late: bool) -> Any:
        """What reaches the store, and what follows from it."""
        told = told_by(op)
        verb, asked = told.verb, told.asked
        value = self._store.engine.run(op)
        if op.mode == "read" or (verb == "claim" and not value) or (verb == "promote" and not value.count):
            return value
        before = self._witness.jobs
        self._witness.saw(verb, asked, value)
        if verb == "sweep" and value.fenced:
            self._fenced(value.fenced)
        if verb == "configure":
            self._waiting.queues_changed(self._loop.time())
        if self._roomy:
            self._judge_waiting(before)
        if op.rings is not None and op.rings(value):
            for line in self._lines:
                line.ring()
        self._look_around()
        return value

    def _fenced(self, workers: tuple[UUID, ...]) -> None:
        self._fences += len(workers)
        self._note("fenced", len(workers))
        for worker in workers:
            process, line = self._homes[worker]
            excused = (
                process.was_paused or line.was_cut or self.plan.loss or self.plan.slow > 1 or self._stepped
            )
            if process.alive and not excused:
                self._complain(f"{process.name} was fenced, though it lived, and was never alone cut off")

    def _judge_waiting(self, before: Any) -> None:
        """Where there is room, no job waits for longer than the poll."""
        now = self._loop.time()
        for number, job in self._witness.jobs.items():
            was = before.get(number)
            if was is job or (was is not None and was.state is job.state and was.run_at == job.run_at):
                continue
            if job.state is State.PENDING:
                self._waiting.is_pending(number, now)
            elif job.state is State.PROCESSING:
                due_for = (self._clock() - job.run_at) / 1000
                if problem := self._waiting.was_claimed(number, now, due_for):
                    self._complain(problem)

    def run_began(self, ctx: Context, process: Process, worker: UUID) -> None:
        """A handler says so. May it?"""
        lease, id = (ctx.number, ctx.fence), ctx.job_id
        self._starts += 1
        self._book.started.add(id)
        self._note("start", *lease, process.name)
        if id not in self._book.tried:
            self._complain(f"job {lease[0]} runs, and nobody has asked for it (phantom)")
        ended = self._witness.ended.get(lease)
        # After a step of the store's clock a claim on its way looks old to a beat, too, which then gives it back.
        excused = ended == "force" or (ended in ("sweep", "beat") and self._stepped)
        if ended is not None and not excused:
            state = self._witness.jobs[ctx.number].state.value
            self._complain(
                f"job {lease[0]}, token {lease[1]} began after {ended} had ended it; it is {state} (I3)"
            )
        for (number, token), (where, task) in self._running.items():
            if number == ctx.number:
                self._judge_overlap(number, token, ctx.fence, where, task)
        self._running[lease] = process, ctx.task

    def _judge_overlap(self, number: int, token: int, other: int, where: Process, task: str) -> None:
        how = self._witness.ended.get((number, token))
        if how not in ("sweep", "force") and not (how == "beat" and self._stepped):
            self._complain(f"job {number} runs twice at once, tokens {token} and {other}, by {how} (I6)")
        elif task == "sole" and how == "sweep" and not (where.was_paused or self._stepped):
            self._complain(f"job {number} is exclusive, and runs twice at once (I6)")

    def run_ended(self, ctx: Context, outcome: str) -> None:
        """A handler says so."""
        self._note("end", ctx.number, ctx.fence, outcome)
        self._running.pop((ctx.number, ctx.fence), None)
        if outcome == "done":
            self._book.done.add((ctx.job_id, ctx.fence))

    def _one_less(self) -> None:
        self._busy -= 1
        self._look_around()

    def _look_around(self) -> None:
        if not self._busy and self._witness.at_rest:
            self._rest.set()

    def _step_clock(self, by: Millis) -> None:
        self._note("clock", by)
        self._stepped = True
        self._offset += by

    def _clock(self) -> Millis:
        return START + int(self._loop.time() * 1000) + self._offset

    def _too_early(self, due: Millis) -> bool:
        """Whether a job must not begin yet; after a step of the clock nobody can say."""
        return due > self._clock() and not self._stepped

    def _note(self, *what: Any) -> None:
        self._trace.append((self._loop.time(), *what))

    def _complain(self, what: str) -> None:
        self._note("wrong", what)
        self.wrong.append(f"{what} at {self._loop.time():.3f} s")
