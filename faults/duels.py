"""Two on one file at the same moment: what each may do alone, they must not do to each other.

    python3 -m faults.duels "sweep against settle" FOLDER

Each round is a race, and whoever comes first wins; the other must notice.
"""

import subprocess
import sys
import threading
from pathlib import Path
from random import Random

from faults.simulation.store import InFile
from shigoto import Shigoto
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.ids import uuid7
from shigoto.model.job import State
from shigoto.model.outcome import Ending, Settlement, Verdict
from shigoto.model.worker import Announcement, SweepOrder, Want
from shigoto.testing.clock import VirtualClock

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


DUELS = {
    "sweep against settle": sweep_against_settle,
    "kill after the last word": kill_after_the_last_word,
}


if __name__ == "__main__":
    said = DUELS[sys.argv[1]](Path(sys.argv[2]))
    print("\n".join(said))
    sys.exit(WRONG if said else 0)
