"""Two on one file at the same moment: what each may do alone, they must not do to each other.

    python3 -m faults.duels "sweep against settle" FOLDER

Each round is a race, and whoever comes first wins; the other must notice.
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from faults.simulation.store import InFile
from shigoto import Shigoto
from shigoto.engine.op import Steps
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.ids import uuid7
from shigoto.model.job import JobSpec, State
from shigoto.model.schedule import Change, Firing, Schedule, TickEntry, TickOutcome
from shigoto.model.worker import Announcement, Ending, Settlement, SweepOrder, Verdict, Want
from shigoto.testing.store import VirtualClock

ROUNDS = 30
LEASE = 10_000
WRONG = 3  # how the program ends if something was wrong


def sweep_against_settle(folder: Path) -> list[str]:
    """A worker that is being fenced settles its job. Either it was in time, or its job is somebody else's."""
    clock, random = VirtualClock(), Random(0)
    store = InFile(clock, folder / "duel.db")
    theirs = SqliteEngine(folder / "duel.db", synchronous="off", clock=clock)
    app = Shigoto(engine=store.engine)
    wrong: list[str] = []

    @app.task(name="work")
    def work() -> None: ...

    for number in range(1, ROUNDS + 1):
        worker, engine = uuid7(), store.engine
        work.enqueue()
        engine.run(
            engine.announce(
                Announcement(
                    id=worker, name="w", tasks=("work",), queues=None, slots=1, version="0", lease=LEASE
                )
            )
        )
        [lease] = engine.run(engine.claim(worker, [Want(tasks=("work",), queues=None, limit=1)]))
        clock.advance(2 * LEASE)
        sweep = threading.Thread(target=engine.run, args=(engine.sweep(SweepOrder(fence=(worker,))),))
        end = Settlement(
            number=lease.number, token=lease.token, queue=lease.queue, ending=Ending.COMPLETED, result="null"
        )
        sweep.start()
        sweep.join(random.random() * 0.02)
        [verdict] = theirs.run(theirs.settle(worker, [end]))
        sweep.join()
        if wrong := _judge(store, number, verdict):
            break
        engine.run(engine.cancel([lease.id]))
    theirs.close()
    store.close()
    return wrong


def _judge(store: InFile, number: int, verdict: Verdict) -> list[str]:
    try:
        state = store.look()[number].state
    except AssertionError as error:
        return [str(error)]
    expected = State.COMPLETED if verdict is Verdict.ACCEPTED else State.PENDING
    return (
        [] if state is expected else [f"job {number} is {state.value}, although its end was {verdict.name}"]
    )


PRODUCER = """
import os, signal, sys
from shigoto import Shigoto
app = Shigoto(sys.argv[1])

@app.task
def work() -> None: ...

for _ in range(20):
    print(work.enqueue().id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_after_the_last_word(folder: Path) -> list[str]:
    """A producer dies right after it was told that its job is stored. Then it is."""
    store = InFile(VirtualClock(), folder / "killed.db")
    command = [sys.executable, "-c", PRODUCER, f"sqlite:///{folder / 'killed.db'}"]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    there = {str(job.id) for job in store.look().values()}
    store.close()
    assert told, "the producer has not said anything"
    return [f"acknowledged, and not there: {id}" for id in told if id not in there]


def kill_in_the_midst_of_a_tick(folder: Path) -> list[str]:
    """A scheduler dies after each of the steps of a tick. Then all of the tick is there, or nothing of it (S4-21)."""
    store, wrong, ended = InFile(VirtualClock(), folder / "ticks.db"), list[str](), False
    engine, step = store.engine, 0
    while not ended:
        step += 1
        new = Schedule(id=uuid7(), name=f"s{step}", definition="{}", look_at=1, decided_to=0, created_at=0)
        engine.run(engine.tick([Change(schedule=new, seen=0)]))
        words = f"from faults.duels import tick_and_die as act; act({str(folder / 'ticks.db')!r}, {new.name!r}, {step})"
        ended = subprocess.run([sys.executable, "-c", words], check=False).returncode == 0
        [after] = engine.run(engine.schedules([new.name]))
        there = {
            "job": any(job.id == new.job_id(1) for job in store.look().values()),
            "line of the history": bool(engine.run(engine.history(new.name))),
            "change of the schedule": after.decided_to == 1,
        }
        if set(there.values()) != {ended}:
            wrong.append(f"of a tick that was cut short after step {step} there is: {there}")
    store.close()
    assert step > 3, "a tick has more steps than that"
    return wrong


def tick_and_die(path: str, name: str, after: int) -> None:
    """Fire one tick of a schedule, and be killed after so many commands, if it takes so many."""
    engine = SqliteEngine(Path(path), synchronous="off")
    [schedule] = engine.run(engine.schedules([name]))
    spec = JobSpec(id=schedule.job_id(1), task="work", queue="default", payload="{}")
    entry = TickEntry(at=1, outcome=TickOutcome.FIRED, decided_at=1, job=spec.id)
    changed = replace(schedule, decided_to=1)
    op = engine.tick([Change(schedule=changed, seen=1, firings=(Firing(entry=entry, spec=spec),))])

    def steps() -> Steps[Any]:
        inner, done, answer = op.start(), 0, None
        try:
            while True:
                answer = yield inner.send(answer)
                done += 1
                if done == after:
                    os.kill(os.getpid(), signal.SIGKILL)
        except StopIteration as stop:
            return stop.value

    engine.run(replace(op, start=steps))
    engine.close()


DUELS = {
    "kill in the midst of a tick": kill_in_the_midst_of_a_tick,
    "sweep against settle": sweep_against_settle,
    "kill after the last word": kill_after_the_last_word,
}


if __name__ == "__main__":
    said = DUELS[sys.argv[1]](Path(sys.argv[2]))
    print("\n".join(said))
    sys.exit(WRONG if said else 0)
