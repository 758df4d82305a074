"""E27: the disk of the server is full, until somebody makes room.

    python -m faults.experiments.e27_server_disk_full FOLDER SECONDS SEED       in a mount namespace of its own

PostgreSQL refuses what needs more room, and if its log of changes can grow no more, it ends itself and cannot begin
again before there is some: then whoever looks after it starts it, as here. Whoever enqueues is told what is wrong;
nothing that was acknowledged is lost, nothing that was refused for good is there, and workers go on by themselves.
"""

import os
import signal
import sys
import threading
import time
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import psycopg

from faults.evidence.checker import Evidence, check
from faults.evidence.records import read
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage
from faults.tools import mounts
from faults.tools.programs import NOT_ALLOWED, run_program, tell
from shigoto import StoreError
from shigoto.model.ids import uuid7

ME = "faults.experiments.e27_server_disk_full"
DISK = "size=300m,mode=0755"
SERVER: dict[str, str | int] = {"max_wal_size": "64MB", "min_wal_size": "32MB"}
RATE = 50  # jobs in a second
PATIENCE = 600.0
FULL_WITHIN = 30.0
AGAIN_WITHIN = 5.0  # seconds from room to the next job that is acknowledged, and to the next that begins
REST_WITHIN = 120.0
CHUNKS = (1024 * 1024, 64 * 1024, 4096)
REASON = "No space left on device"
# What a server says that is not there, or not yet.
AWAY = (
    "Connection refused",
    "starting up",
    "in recovery",
    "shutting down",
    "not yet accepting",
    "closed",
    "because of crash of another server process",
    "has not answered",
)
LONG = 10.0  # seconds: who has so many also sees the server's log of changes fill up
MESSAGES = 400  # of a mebibyte each: more than the disk ever had room for


def run(setting: Setting) -> Outcome:
    """In a program of its own, since only its own processes see its mounts."""
    way = mounts.namespace()
    if way is None:
        return Outcome(skipped="no mounts of our own")
    folder = setting.folder / "full"
    folder.mkdir()
    outcome = run_program(
        ME,
        folder,
        setting.of(1.5, 45),
        setting.seed,
        log=setting.folder / "program.log",
        seconds=PATIENCE,
        wrap=way,
        environment={"SHIGOTO_LEDGER": str(folder / "ledger")},
    )
    return Outcome(skipped="this system does not allow a disk of our own") if outcome is None else outcome


class Ballast:
    """Fills the disk to the last byte, again and again, in a thread, until it is thrown off."""

    def __init__(self, disk: Path) -> None:
        self._path = disk / "ballast"
        self._thrown = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def throw_off(self) -> None:
        """Make room."""
        self._thrown.set()
        self._thread.join()
        self._path.unlink()

    def _run(self) -> None:
        with self._path.open("ab", buffering=0) as file:
            while not self._thrown.is_set():
                for size in CHUNKS:
                    with suppress(OSError):
                        while not self._thrown.is_set():
                            os.write(file.fileno(), bytes(size))
                self._thrown.wait(0.05)


class Client:
    """Somebody who enqueues one job after the other beside the producers, and remembers what was said."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.refused: dict[str, str] = {}  # why, by id

    def enqueue(self) -> bool:
        """Try one more."""
        id, pen = str(uuid7()), self._stage.pen
        pen.write("try", job=id)
        try:
            self._stage.app.tasks["asynchronous"].using(id=UUID(id)).enqueue(milliseconds=5)
        except StoreError as error:
            pen.write(
                "err", job=id, outcome=type(error).__name__, ambiguous="may have been made" in str(error)
            )
            self.refused[id] = f"{type(error).__name__}: {error}"
            return False
        pen.write("ok", job=id)
        return True


def disturb(folder: Path, seconds: float, seed: int) -> Outcome:
    """Fill the disk under load, leave it full for so long, make room, and look."""
    disk, log = folder / "disk", folder / "worker.log"
    disk.mkdir()
    if mounts.mount("tmpfs", disk, DISK):
        sys.exit(NOT_ALLOWED)
    setting = Setting(engine="postgres", folder=folder, seed=seed, full=False)
    with Stage(setting, server_folder=disk / "postgres", server_settings=SERVER) as stage:
        worker = stage.worker("--lease", "10", "--log-level", "warning", output=log)
        pace = ["--rate", str(RATE), "--milliseconds", "5,50", "--tries", "300"]
        tasks = ["--tasks", "asynchronous,in_a_thread,transactional"]
        producer = stage.producer(round(RATE * (2 * seconds + 5)), *pace, *tasks)
        stage.wait_until(lambda: stage.app.stats() and began(stage), seconds=30, what="nothing began")
        client = Client(stage)
        filled = time.monotonic()
        ballast = Ballast(disk)
        stage.wait_until(lambda: not client.enqueue(), seconds=FULL_WITHIN, what="the disk was not full")
        while time.monotonic() < filled + seconds / 2:
            client.enqueue()
            time.sleep(0.2)
        broken = seconds >= LONG and use_up(stage)
        while time.monotonic() < filled + seconds:
            client.enqueue()
            time.sleep(0.2)
        refused = len(client.refused)
        went_down = not stage.server.running
        alive = worker.poll() is None
        ballast.throw_off()
        room = time.monotonic()
        if went_down:
            stage.server.start()
        back = time.monotonic()
        stage.wait_until(client.enqueue, seconds=AGAIN_WITHIN, what="nothing could be enqueued again")
        again = time.monotonic()
        stage.wait_until(lambda: began(stage, after=again), seconds=AGAIN_WITHIN, what="no job began again")
        picked_up = time.monotonic()
        code = producer.wait(REST_WITHIN)
        stage.rest(REST_WITHIN)
        evidence = stage.evidence()
        stage.do("term", worker, whole_tree=False)
        left = worker.wait(60)
        outcome = check(evidence).outcome(sum(record.what == "ok" for record in evidence.records))
        outcome.wrong += setting.missed + judged(client, evidence)
        outcome.wrong += [] if alive and left == 0 else [f"the worker ended with {left}"]
        outcome.wrong += [f"the producer ended with {code}"] if code else []
        outcome.wrong += ["the server did not break down"] if seconds >= LONG and not broken else []
    outcome.recovery = [picked_up - back]
    outcome.figures |= {
        "seconds full": round(room - filled, 1),
        "refusals": refused,
        "refusals of producers": sum(record.what == "err" for record in evidence.records) - refused,
        "the server broke down": broken,
        "and had to be started by hand": went_down,
        "seconds from room to a server": round(back - room, 2),
        "seconds from the server to the next job": round(picked_up - back, 2),
        "what was said": sorted({text.partition("/jobs")[2][:160] for text in client.refused.values()})[:6],
        "unavailable seconds": round(unavailable(evidence), 1),
    }
    return outcome


def use_up(stage: Stage) -> bool:
    """Let the server's log of changes grow until there is no more room for it; tells whether the server broke down."""
    with closing(stage.server.connect()) as connection:
        with suppress(psycopg.Error):
            for _ in range(MESSAGES):
                connection.execute("SELECT pg_logical_emit_message(false, 'ballast', repeat('x', 1048576))")
        return bool(connection.broken)


def began(stage: Stage, after: float = 0.0) -> bool:
    """Whether a handler has begun after this moment."""
    return any(record.what == "start" and record.at > after for record in read(stage.ledger))


def judged(client: Client, evidence: Evidence) -> list[str]:
    """What the checker cannot know."""
    wrong = unfinished(evidence.states.values())
    certain = {record.job for record in evidence.records if record.what == "err" and not record.ambiguous}
    acknowledged = {record.job for record in evidence.records if record.what == "ok"}
    there = sum(id in evidence.states for id in certain - acknowledged)
    wrong += [f"{there} jobs were refused and are there"] if there else []
    texts = set(client.refused.values())
    if not any(REASON in text for text in texts):
        wrong.append("nobody was told that there is no space left")
    wrong += [
        f"an error does not say what is wrong: {text}"
        for text in texts
        if REASON not in text and not any(word in text for word in AWAY)
    ][:3]
    return wrong


def unavailable(evidence: Evidence) -> float:
    """For how long nothing was acknowledged, at most."""
    moments = [record.at for record in evidence.records if record.what == "ok"]
    return max((after - before for before, after in pairwise(moments)), default=0.0)


EXPERIMENT = Experiment(id="E27", title="the server's disk is full", act=run, engines=("postgres",))

if __name__ == "__main__":
    signal.alarm(int(PATIENCE))
    tell(disturb(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
