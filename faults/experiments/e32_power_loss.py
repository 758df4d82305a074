"""E32: the power fails, and of what was not synced any part is lost.

The writes and syncs of a producer and worker are recorded, and crash images are rebuilt from them (`powerloss.py`).
With `synchronous=full` every image has all that was acknowledged before the crash: jobs that were stored, and ends
that were settled. With `synchronous=normal` that is measured. In neither is a file ever damaged.
"""

import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from uuid import UUID

from msgspec import Struct

from faults.experiment import Experiment, Outcome, Setting
from faults.stage import Stage
from faults.tools import powerloss, strace
from faults.tools.takeover import intact
from shigoto import State
from shigoto.engine.sqlite import SqliteEngine

PATIENCE = 300.0


class Mode(Struct):
    """What was seen of the images of one mode."""

    events: int = 0
    syncs_of_the_log: int = 0
    syncs_of_the_file: int = 0
    acknowledged: int = 0
    images: int = 0
    lost_stored: int = 0
    lost_settled: int = 0
    images_with_loss: int = 0
    damaged: int = 0


def run(setting: Setting) -> Outcome:
    if strace.why_not():
        return Outcome(skipped=strace.why_not())
    outcome = Outcome(measured=("lost", "vanished"))
    for synchronous in ("full", "normal"):
        mode = Mode()
        _lose_power(setting, synchronous, mode, outcome)
        setting.say(f"synchronous={synchronous}: {mode}")
        outcome.figures[synchronous] = {name: getattr(mode, name) for name in mode.__struct_fields__}
        if synchronous == "full":
            outcome.n = mode.images
            # A job that is not there will never run either.
            outcome.lost += mode.lost_stored
            outcome.vanished += mode.lost_stored
            if mode.lost_settled:
                outcome.wrong.append(f"{mode.lost_settled} ends were acknowledged and are not there")
    return outcome


def _lose_power(setting: Setting, synchronous: str, mode: Mode, outcome: Outcome) -> None:
    folder = setting.folder / synchronous
    folder.mkdir()
    base, record = _record(setting, folder, synchronous)
    mode.events = len(record)
    synced = Counter(event.path for event in record if event.kind == "sync")
    mode.syncs_of_the_log = synced[f"{folder / 'jobs.db'}-wal"]
    mode.syncs_of_the_file = synced[str(folder / "jobs.db")]
    random = setting.random(synchronous)
    store = folder / "image" / "jobs.db"
    store.parent.mkdir()
    for number in range(setting.of(60, 1500)):
        loss = powerloss.LOSSES[number % len(powerloss.LOSSES)]
        crash = random.randint(1, len(record))
        disk = powerloss.Disk(base, folder / "jobs.db", record[:crash])
        rubbish = random.randbytes(32_768) if random.random() < 0.3 else None
        powerloss.lay_down(disk.image(loss, random), store, rubbish)
        wrong = _examine(store, record[:crash], mode)
        where = f"synchronous={synchronous}, image {number}, crash at event {crash}, lost: {loss}"
        outcome.wrong += [f"{where}: {wrong}"] if wrong else []


def _record(setting: Setting, folder: Path, synchronous: str) -> tuple[bytes, list[powerloss.Event]]:
    """The file before, and everything that was done to it."""
    with Stage(Setting(engine="sqlite", folder=folder, seed=0, full=False), "cycle", audited=False) as stage:
        with closing(sqlite3.connect(stage.store)) as connection, connection:
            connection.execute("CREATE TABLE effects (job TEXT)")
        stage.app.close()
        base = stage.store.read_bytes()
        log, said = folder / "strace.log", folder / "said"
        jobs, limit = setting.of((14, 100_000), (110, 400_000))
        url = f"{stage.url}?synchronous={synchronous}"
        words = [sys.executable, "-m", "faults.apps.steady", url, str(jobs), str(said), str(limit)]
        process = stage.start([*strace.recording(powerloss.CALLS, log=log), *words], output=folder / "output")
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = -1
        if code != 0:
            raise RuntimeError(f"the program ended with {code}: {(folder / 'output').read_text()[-2000:]}")
        return base, powerloss.Record(log, stage.store, said).events


def _examine(store: Path, events: list[powerloss.Event], mode: Mode) -> str:
    """Open an image as anybody would, and compare it with what was said before the crash."""
    said = [event.data.decode().split() for event in events if event.kind == "say"]
    stored, settled = ([UUID(id) for word, id in said if word == which] for which in ("stored", "settled"))
    mode.images += 1
    mode.acknowledged += len(said)
    try:
        engine = SqliteEngine(store)
        try:
            lost = sum(job is None for job in engine.run(engine.get(stored)))
            ends = engine.run(engine.get(settled))
            unsettled = sum(job is None or job.state is not State.COMPLETED for job in ends)
        finally:
            engine.close()
        whole = intact(store)
    except Exception as error:  # whatever a damaged file makes of us
        mode.damaged += 1
        return f"cannot be used: {error!r}"
    mode.lost_stored += lost
    mode.lost_settled += unsettled
    mode.images_with_loss += bool(lost or unsettled)
    mode.damaged += not whole
    return "" if whole else "the file is damaged"


EXPERIMENT = Experiment(id="E32", title="power loss", act=run)
