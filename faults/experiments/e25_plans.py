"""E25: ten million finished jobs, a million that wait, and a hundred thousand in the way. A claim does not notice.

In the way are jobs of the best priority that nobody may start: those of a task that no worker knows, and those of a
paused queue. The server has statistics of a time when all was empty; then good ones; then none. It counts how many rows
a claim has read of the line: no more than twice what it takes, of one lane.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from faults.experiment import Experiment, Outcome, Setting
from faults.stage import Stage
from faults.tools.costs import Cost, Meter
from faults.tools.enqueueing import enqueue
from shigoto.engine.op import Op
from shigoto.engine.postgres import PostgresEngine
from shigoto.model.ids import uuid7
from shigoto.model.job import JobFilter, JobSpec, Lease, State
from shigoto.model.worker import Announcement, Ending, Settlement, SweepOrder, Want
from shigoto.queues import pause_op

BATCHES = (1, 10, 100, 500)
KNOWN, UNKNOWN = "asynchronous", "unheard_of"
READ = 2  # rows of the line for each that is taken
PAGES_MORE = 3  # times as many pages: an index of ten millions is deeper
# Nobody tidies up meanwhile, so that nothing is known of the tables but what is said here.
SERVER: dict[str, str | int] = {"autovacuum": "off", "max_wal_size": "8GB", "checkpoint_timeout": "1h"}
FINISHED, WAITING, IN_THE_WAY = 100_000_000, 200_000_000, 300_000_000  # the first numbers
UNLOGGED = """
ALTER TABLE shigoto.job SET UNLOGGED;
ALTER TABLE shigoto.done SET UNLOGGED;
ALTER TABLE shigoto.ready SET UNLOGGED;
"""
BODIES = """
INSERT INTO shigoto.job (number, id, lane, priority, run_at, created_at, max_failures, tenant, payload)
OVERRIDING SYSTEM VALUE
SELECT {first} + i, lpad(to_hex({first} + i), 32, '0')::uuid, {lane}, {priority}, 1000, 1000, 6, '', '{{}}'
FROM generate_series(1, {many}) i
"""
READY = """
INSERT INTO shigoto.ready (run_at, number, lane, priority)
SELECT 1000, {first} + i, {lane}, -({priority}) FROM generate_series(1, {many}) i
"""
DONE = """
INSERT INTO shigoto.done (number, state, token, settled_token, failures, crashes, releases, snoozes, started_at,
  finished_at, result)
SELECT {first} + i, CASE WHEN i % 1000 = 0 THEN 4 ELSE 3 END, 1, 1, 0, 0, 0, 0, 1000,
  floor(extract(epoch FROM now()) * 1000)::bigint, 'null'
FROM generate_series(1, {many}) i
"""
NUMBERS = "SELECT setval(pg_get_serial_sequence('shigoto.job', 'number'), 400000000)"
LANE = "SELECT lane FROM shigoto.lane WHERE task = %s AND queue = %s"
FORGET = "SET allow_system_table_mods = on; DELETE FROM pg_statistic; UPDATE pg_class SET reltuples = -1"


def run(setting: Setting) -> Outcome:
    """Weigh it in an almost empty store, and in a full one with statistics of every kind."""
    sizes = setting.of((20_000, 10_000, 2_000), (10_000_000, 1_000_000, 100_000))
    with Stage(setting, audited=False, server_settings=SERVER) as stage:
        trial = Trial(stage)
        try:
            before = trial.weigh("empty")
            with stage.server.connect() as connection:
                connection.execute("ANALYZE")
            fill(stage, *sizes)
            costs = {"of the empty store": trial.weigh("of the empty store")}
            for name, script in (("good", "ANALYZE"), ("none", FORGET)):
                with stage.server.connect() as connection:
                    connection.execute(script.encode())
                costs[name] = trial.weigh(name)
        finally:
            trial.close()
    outcome = Outcome(n=sum(len(each) for each in costs.values()))
    for statistics, found in costs.items():
        for name, cost in found.items():
            outcome.wrong += [
                f"{name}, statistics {statistics}: {text}" for text in judged(name, cost, before[name])
            ]
        outcome.figures[f"statistics {statistics}"] = {name: told(cost) for name, cost in found.items()}
    outcome.figures["almost empty"] = {name: told(cost) for name, cost in before.items()}
    outcome.figures["finished, waiting, in the way"] = sizes
    return outcome


def judged(name: str, cost: Cost, before: Cost) -> list[str]:
    """What must not be."""
    wrong: list[str] = []
    kind, _, batch = name.partition(" of ")
    if kind == "claim" and cost.rows.get("ready", 0) > READ * int(batch):
        wrong.append(f"{cost.rows['ready']} rows of the line are read")
    if cost.all_rows > 1.2 * before.all_rows + 20:
        wrong.append(
            f"{cost.all_rows} rows are read, and {before.all_rows} in an empty store: {dict(cost.rows)}"
        )
    if cost.pages > PAGES_MORE * before.pages + 30:
        wrong.append(f"{cost.pages} pages are read, and {before.pages} in an empty store")
    return wrong


def told(cost: Cost) -> dict[str, Any]:
    """For the figures."""
    return {
        "rows": cost.all_rows,
        "of the line": cost.rows.get("ready", 0),
        "pages": cost.pages,
        "ms": cost.milliseconds,
    }


def fill(stage: Stage, finished: int, waiting: int, in_the_way: int) -> None:
    """Put them there, behind the back of the store, which would take an hour."""
    with stage.server.connect() as connection:
        lanes = {}
        for task, queue in ((KNOWN, "default"), (UNKNOWN, "default"), (KNOWN, "paused")):
            row: Any = connection.execute(LANE, (task, queue)).fetchone()
            lanes[task, queue] = row[0]
        connection.execute(UNLOGGED)
        known = lanes[KNOWN, "default"]
        for first, many, lane, priority, place in (
            (FINISHED, finished, known, 0, DONE),
            (WAITING, waiting, known, -10, READY),
            (IN_THE_WAY, in_the_way, lanes[UNKNOWN, "default"], 100, READY),
            (2 * IN_THE_WAY, in_the_way, lanes[KNOWN, "paused"], 100, READY),
        ):
            for text in (BODIES, place):
                words = text.format(first=first, many=many, lane=lane, priority=priority)
                connection.execute(words.encode())
        connection.execute(NUMBERS)
        stage.setting.say(f"{finished} finished, {waiting} waiting, {in_the_way} in the way, twice")


class Trial:
    """The operations that are weighed, on jobs that are alike in every store."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._engine = PostgresEngine(f"{stage.url}?listen=off")
        self._meter = Meter(stage.server.url_of("jobs"))
        self._worker = uuid7()
        self._leases: list[Lease] = []
        announcement = Announcement(
            id=self._worker, name="w", tasks=(KNOWN,), queues=None, slots=1, version="0", lease=3_600_000
        )
        self._engine.run(self._engine.announce(announcement))
        self._engine.run(pause_op(self._engine, "paused", paused=True))
        self._engine.run(self._engine.enqueue_many([self._spec(UNKNOWN), self._spec(KNOWN, "paused")]))
        task = stage.app.tasks[KNOWN]
        enqueue(stage, [(task, {"milliseconds": 0})] * (3 * max(BATCHES)))
        self._leases = self._engine.run(self._claim(200))
        self._engine.run(self._complete())  # what a sweep can walk through in every store
        self._leases = self._engine.run(self._claim(100))

    def close(self) -> None:
        """Let go of the server."""
        self._meter.close()
        self._engine.close()

    def weigh(self, what: str) -> dict[str, Cost]:
        """Everything once, to have it in memory, and once again."""
        held = [(lease.number, lease.token) for lease in self._leases]
        ops: dict[str, Callable[[], Op[Any]]] = {
            **{f"claim of {batch}": partial(self._claim, batch) for batch in BATCHES},
            "enqueue": lambda: self._engine.enqueue_many([self._spec(KNOWN)]),
            "complete of 100": self._complete,
            "beat": lambda: self._engine.beat(self._worker, held),
            "promote": lambda: self._engine.promote(100),
            "sweep": lambda: self._engine.sweep(SweepOrder(batch=100)),
            "first page of processing": lambda: self._engine.find(
                JobFilter(state=State.PROCESSING, limit=20)
            ),
            "get of 20": lambda: self._engine.get([lease.id for lease in self._leases[:20]]),
        }
        found: dict[str, Cost] = {}
        for name, make in ops.items():
            self._meter.weigh(make())
            found[name] = self._meter.weigh(make())
        self._stage.setting.say(f"{what}: { ({name: told(cost) for name, cost in found.items()}) }")
        return found

    def _claim(self, limit: int) -> Op[list[Lease]]:
        return self._engine.claim(self._worker, [Want(tasks=(KNOWN,), queues=None, limit=limit)])

    def _complete(self) -> Op[Any]:
        ends = [
            Settlement(number=each.number, token=each.token, queue=each.queue, ending=Ending.COMPLETED)
            for each in self._leases
        ]
        return self._engine.settle(self._worker, ends)

    @staticmethod
    def _spec(task: str, queue: str = "default") -> JobSpec:
        return JobSpec(id=uuid7(), task=task, queue=queue, payload='{"milliseconds":0}')


EXPERIMENT = Experiment(id="E25", title="millions of jobs in the store", act=run, engines=("postgres",))
