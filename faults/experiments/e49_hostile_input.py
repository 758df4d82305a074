"""E49: hostile input through Python, the command line, HTTP and by hand: refused clearly, or failed cleanly, never
stuck."""

import os
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct, field, json, structs

from faults.evidence.checker import check
from faults.experiment import Experiment, Outcome, Setting
from faults.stage import Stage, children_of
from faults.stores.served import Served
from faults.tools.commands import acknowledge, judged, shortened
from faults.tools.doors import Tally
from faults.tools.peak import Peak
from faults.tools.rows import Rows
from shigoto import FailureKind, State

PATIENCE = 120.0
SOON = 10.0
MOST_MEMORY = 250.0  # MB of any process: payloads of 3 MB are made by the hundred, and none may be kept
# Rows that contradict another table: no claim may take them and no sweep may end them, and they are in nobody's way.
CONTRADICTIONS = ("ready.expires_at = ",)
# Why a job may fail before its handler begins.
UNRUN = (
    FailureKind.PAYLOAD_INVALID,
    FailureKind.UNKNOWN_TASK,
    FailureKind.EXPIRED,
    FailureKind.SUPERSEDED,
)
# The program that knocks at each door; in how many processes, and how often each, in the short form and in the full.
CROWDS = {
    "python": ("faults.tools.doors", (1, 300), (2, 8_000)),
    "commands": ("faults.tools.commands", (1, 150), (4, 800)),
    "http": ("faults.tools.http_door", (1, 400), (2, 8_000)),
}
BYTES = (b"\xff\xfe", b'{"value":"\xff"}', b"\xc3\x28", b"\x1b[31m", b"\xed\xa0\x80", b"queue:\xff", b"#\xff")


class Seen(Struct):
    """What became of hostile input, by the door it came through."""

    doors: dict[str, Tally] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    failed: int = 0
    stuck: int = 0
    memory: Peak = field(default_factory=Peak)


def run(setting: Setting) -> Outcome:
    """Knock at every door, with a worker at work all the time; a healthy job behind each crowd must be completed."""
    seen = Seen()
    with Stage(setting, "hostile") as stage:
        worker = stage.worker("--lease", "10")
        for door in ("python", "commands"):
            _crowd(stage, worker, seen, door, stage.url)
        _over_http(stage, worker, seen)
        seen.doors["shell"] = _shell(stage, setting)
        _wait(stage, worker, seen, "hostile calls and commands")
        _cancel_the_rest(stage)
        _judge_results(stage, seen)
        evidence = stage.evidence()
        evidence.refusable = _failed_as(stage, *UNRUN)
        evidence.unruly = _failed_as(stage, FailureKind.RESULT_INVALID)
        evidence.keyed = frozenset(str(job.id) for job in stage.jobs() if job.key is not None)
        outcome = check(evidence).outcome(len(evidence.states))
    _by_hand(structs.replace(setting, folder=setting.folder / "by_hand"), seen)
    return _outcome(outcome, seen)


def _failed_as(stage: Stage, *kinds: FailureKind) -> frozenset[str]:
    """The jobs that have failed for such a reason."""
    return frozenset(str(job.id) for job in stage.jobs() if job.failure_kind in kinds)


def _cancel_the_rest(stage: Stage) -> None:
    """What is due much later."""
    for job in stage.jobs():
        if job.state is State.PENDING:
            stage.pen.write("cancel", job=str(job.id))
    stage.app.cancel(state="pending")


def _count(tally: Tally) -> int:
    return tally.refused + tally.accepted + tally.crashes


def _over_http(stage: Stage, worker: subprocess.Popen[bytes], seen: Seen) -> None:
    """The same at a server, whose memory is looked at as well."""
    server = stage.between(Served(stage))
    url = server.url_for(server.token("submit", "read", "admin", "work"))
    _crowd(stage, worker, seen, "http", url)
    if server.process is None or server.process.poll() is not None:
        seen.wrong.append("http: the server has ended")
    else:
        seen.memory.look(server.process.pid)
    if "Traceback" in (told := server.log.read_text(errors="replace")):
        seen.wrong.append(f"http: the server said: {told[-500:]}")


def _crowd(stage: Stage, worker: subprocess.Popen[bytes], seen: Seen, door: str, url: str) -> None:
    """Knock at a door from processes of their own, whose memory is theirs alone and is looked at while they run."""
    module, short, full = CROWDS[door]
    processes, each = stage.setting.of(short, full)
    tally = seen.doors[door] = Tally()
    for number in range(processes):
        out = stage.folder / f"{door} {number}.json"
        seed = f"{stage.setting.seed} {door} {number}"
        words = [sys.executable, "-m", module, stage.module, url, str(each), seed]
        process = stage.start(words, output=out)

        def has_ended(process: subprocess.Popen[bytes] = process) -> bool:
            seen.memory.look(worker.pid)
            seen.memory.look(process.pid)
            return process.poll() is not None

        if not stage.wait_until(has_ended, seconds=PATIENCE * 2, what=f"{door}: hostile input had no end"):
            continue
        if process.returncode:
            seen.wrong.append(f"{door}: ended with {process.returncode}: {out.read_text()[-500:]}")
            continue
        tally.add(json.decode(out.read_bytes().splitlines()[-1], type=Tally))


def _shell(stage: Stage, setting: Setting) -> Tally:
    """A few commands as a shell starts them, with words that are no text."""
    tally = Tally()
    started = [os.fsencode(sys.executable), b"-m", b"shigoto", b"--url", os.fsencode(stage.url)]
    forms: list[list[bytes]] = [
        [b"--app", b"faults.apps.hostile:app", b"enqueue", b"echo"],
        [b"list"],
        [b"show"],
    ]
    chosen = [(form, word) for form in forms for word in BYTES]
    for form, word in setting.random("shell").sample(chosen, setting.of(3, len(chosen))):
        path = os.pathsep.join(sys.path)
        done = subprocess.run(
            [*started, *form, word],
            env=os.environ | {"PYTHONPATH": path},
            cwd=stage.folder,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if wrong := judged(done.returncode, out, err):
            tally.crashed(f"{shortened([repr(part) for part in [*form, word]])}: {wrong}")
        elif done.returncode:
            tally.refused += 1
        else:
            tally.accepted += 1
            acknowledge(stage.pen, out)
    return tally


def _wait(stage: Stage, worker: subprocess.Popen[bytes], seen: Seen, after: str) -> None:
    """Until nothing is due or runs, and a healthy job has come through."""

    def nothing_is_due() -> bool:
        seen.memory.look(worker.pid)
        counts = stage.app.stats().values()
        return all(count.pending == count.scheduled and not count.processing for count in counts)

    healthy = stage.app.tasks["healthy"].enqueue()
    stage.pen.write("ok", job=str(healthy.id))
    stage.wait_until(nothing_is_due, seconds=PATIENCE, what=f"after {after} nothing had ended")
    if healthy.status() is not State.COMPLETED:
        seen.wrong.append(f"after {after} a healthy job is {healthy.status()}")
    now = datetime.now(UTC)
    late = [
        job
        for job in stage.jobs()
        if job.state is State.PENDING and job.run_at < now - timedelta(seconds=SOON)
    ]
    seen.stuck += len(late) + len(stage.app.find(state="processing"))


def _judge_results(stage: Stage, seen: Seen) -> None:
    """What was echoed is what was handed in, and every failure has words."""
    for job in stage.jobs():
        if job.state is State.FAILED:
            seen.failed += 1
            if not job.error and str(job.failure_kind) not in ("expired", "superseded"):
                seen.wrong.append(f"job {job.number} has failed without an error")
        if job.state is State.COMPLETED and job.task.startswith("echo"):
            sent: Any = json.decode(job.payload)["value"]
            if json.decode(job.result or "null") != sent:
                seen.wrong.append(f"job {job.number} has not given back what it was given")


def _by_hand(setting: Setting, seen: Seen) -> None:
    """Rows that no door would let in. The next job must be run all the same, and looking must hurt nobody."""
    random = setting.random("rows")
    tally = seen.doors["by hand"] = Tally()
    with Stage(setting, "hostile", audited=False) as stage:
        worker = stage.worker("--lease", "5")
        stage.app.tasks["echo"].enqueue(value=1).result(timeout=PATIENCE)
        runners = children_of(worker.pid)
        rows = Rows(stage.store, "echo")
        deeds = list(rows.deeds())
        random.shuffle(deeds)
        for name, statement in deeds[: setting.of(60, len(deeds))]:
            try:
                number = rows.spoil(statement)
            except sqlite3.IntegrityError:
                tally.refused += 1
                continue
            for word in _after_a_deed(stage, rows, name, number, seen):
                tally.crashed(f"{name}: {word}")
            tally.accepted += 1
        seen.memory.look(worker.pid)
        time.sleep(setting.of(0, SOON))  # two sweeps, which meet all that was left
        if children_of(worker.pid) != runners:
            seen.wrong.append("rows that were written by hand have ended a runner process")


def _after_a_deed(stage: Stage, rows: Rows, name: str, number: int, seen: Seen) -> list[str]:
    """What is wrong, if anything is; the row goes afterwards if it would be in the way of the next."""
    wrong: list[str] = []
    app = stage.app
    healthy = app.tasks["healthy"].enqueue()
    looks = (
        lambda: healthy.result(timeout=SOON),
        lambda: app.find(limit=5),
        lambda: app.find(tag="x"),
        lambda: app.find(args={"value": 1}, limit=5),
        app.stats,
    )
    for look in looks:
        try:
            look()
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {str(error)[:200]}")
    stage.wait_until(
        lambda: rows.place_of(number) not in ("ready", "running") or name.startswith(CONTRADICTIONS),
        seconds=SOON,
        what=f"{name}: still there",
    )
    place = rows.place_of(number)
    seen.failed += place.startswith("4")
    if place in ("ready", "running") and not name.startswith(CONTRADICTIONS):
        seen.stuck += 1
    rows.remove(number)
    return wrong


def _outcome(outcome: Outcome, seen: Seen) -> Outcome:
    highest = seen.memory.highest
    tallies = seen.doors.values()
    outcome.wrong += seen.wrong
    outcome.wrong += [f"{door}: {each}" for door, tally in seen.doors.items() for each in tally.examples]
    if seen.stuck:
        outcome.wrong.append(f"{seen.stuck} jobs are stuck")
    if highest > MOST_MEMORY:
        outcome.wrong.append(f"a process has had {highest:.0f} MB, more than {MOST_MEMORY:.0f}")
    outcome.figures |= {
        "tried": sum(_count(tally) for tally in tallies),
        "refused": sum(tally.refused for tally in tallies),
        "accepted": sum(tally.accepted for tally in tallies),
        "failed cleanly": seen.failed,
        "crashes": sum(tally.crashes for tally in tallies),
        "stuck": seen.stuck,
        "max RSS MB": round(highest),
        "by door": {
            door: [tally.refused, tally.accepted, tally.crashes] for door, tally in seen.doors.items()
        },
    }
    return outcome


EXPERIMENT = Experiment(id="E49", title="hostile input", act=run)
