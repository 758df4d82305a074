"""Work that goes on while its server, or the line to it, does not; and how soon it goes on afterwards.

That is read from the audit: work goes on when the store gives out jobs again. Nobody is harmed by an outage but the
transactions that are open then, so nothing else may run again.
"""

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from subprocess import Popen
from typing import Literal

from msgspec import Struct, field

from faults.evidence.checker import Evidence, check
from faults.evidence.records import read
from faults.evidence.runs import runs
from faults.experiment import Outcome, unfinished
from faults.stage import Stage
from faults.stores.host import How

ENDLESS = 10_000_000
READY_WITHIN = 30.0
GOES_ON_WITHIN = 60.0
PICKED_UP_WITHIN = 5.0  # seconds from the return of a server to the next claim
WORKERS = 2
SLOTS = ("--concurrency", "16", "--threads", "4", "--children", "0", "--log-level", "warning")
TASKS = "plain,in_a_thread,transactional,transactional"
NEWEST_CLAIM = """
SELECT extract(epoch FROM clock_timestamp()) - at FROM audit.change
WHERE place = 'running' AND deed = 'in' ORDER BY sequence DESC LIMIT 1
"""

NEWEST_CLAIM_IN_FILE = """
SELECT at FROM audit WHERE place = 'running' AND deed = 'in' ORDER BY sequence DESC LIMIT 1
"""


class Load:
    """Workers, and producers that enqueue at this rate together until they are ended; half of it is transactional.

    The stage's app is `outages`. `url` is another way to the store for the workers, `from_url` one for the producers;
    `own` are options of each worker.
    """

    def __init__(
        self,
        stage: Stage,
        *,
        rate: float,
        milliseconds: str = "20,200",
        tasks: str = TASKS,
        options: Sequence[str] = (),
        url: str | None = None,
        from_url: str | None = None,
        environment: dict[str, str] | None = None,
        wrap: Sequence[str] = (),
        own: Sequence[Sequence[str]] = ((),) * WORKERS,
    ) -> None:
        self._stage = stage
        self.log = stage.folder / "worker.log"
        self.workers = [
            stage.worker(
                *SLOTS, *options, *each, url=url, environment=environment, output=self.log, wrap=wrap
            )
            for each in own
        ]
        stage.wait_until(
            lambda: len(stage.app.workers()) == WORKERS,
            seconds=READY_WITHIN,
            what="the workers were not ready",
        )
        pace = ("--rate", f"{rate / 2:g}", "--milliseconds", milliseconds)
        self._producers = [stage.producer(ENDLESS, "--tasks", tasks, *pace, url=from_url) for _ in range(2)]
        goes_on(stage)

    def end(self) -> None:
        """End the producers, who would go on for ever."""
        for producer in self._producers:
            self._stage.do("kill", producer)
            producer.wait()

    def judged(self, evidence: Evidence) -> Outcome:
        """What the evidence says, and the workers' log; nobody but a transaction may have been disturbed, and no
        handler may fail."""
        findings = check(evidence)
        outcome = findings.outcome(n=sum(record.what == "ok" for record in evidence.records))
        outcome.wrong += unfinished(evidence.states.values())
        allowed = ("release", "none")
        outcome.wrong += [f"Jobs ran again by {how!r}." for how in findings.reruns if how not in allowed]
        outcome.wrong += [f"A worker said: {line}" for line in tracebacks(self.log)[:3]]
        outcome.wrong += ended(self.workers)
        if len(evidence.workers) != len(self.workers):
            outcome.wrong.append(f"{len(evidence.workers)} runners were needed, and not {len(self.workers)}.")
        if any(worker.fenced is not None for worker in evidence.workers.values()):
            outcome.wrong.append("A worker was fenced, and none was harmed.")
        outcome.figures |= surfaced(evidence)
        outcome.wrong += [
            f"Producers were told {told}."
            for told in outcome.figures["errors told to producers"]
            if told not in ("StoreUnavailable", "StoreBusy")
        ]
        if outcome.figures["runs ended by"].get("error"):
            outcome.wrong.append("Handlers were told of trouble in words of the driver.")
        return outcome


def surfaced(evidence: Evidence) -> dict[str, dict[str, int]]:
    """What callers and handlers were told of the trouble: how often, by its name."""
    told: dict[str, int] = {}
    ends: dict[str, int] = {}
    for record in evidence.records:
        if record.what == "err":
            told[record.outcome] = told.get(record.outcome, 0) + 1
        elif record.what == "end" and record.outcome != "done":
            ends[record.outcome] = ends.get(record.outcome, 0) + 1
    return {"errors told to producers": told, "runs ended by": ends}


def tracebacks(log: Path) -> list[str]:
    """The last line of each traceback that a worker has written: it should have known what to do."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    found = [at for at, line in enumerate(lines) if "Traceback" in line]
    return [next((line for line in lines[at + 1 :] if line[:1].strip()), lines[at]) for at in found]


def ended(workers: Sequence[Popen[bytes]]) -> list[str]:
    """Workers that are no longer there."""
    return [f"A worker ended with {worker.returncode}." for worker in workers if worker.poll() is not None]


def goes_on(stage: Stage, since: float | None = None, within: float = GOES_ON_WITHIN) -> bool:
    """Wait until the store has given out a job after this moment, now unless it is said."""
    at = time.monotonic() if since is None else since
    return stage.wait_until(
        lambda: newest_claim(stage) > at, seconds=within, what="no job was given out any more"
    )


def all_go_on(stage: Stage) -> bool:
    """Wait until each worker has begun a job from now on: none is still on its way back to the store."""
    at = time.monotonic()
    return stage.wait_until(
        lambda: (
            len({each.pid for each in read(stage.ledger) if each.what == "start" and each.at > at}) >= WORKERS
        ),
        seconds=GOES_ON_WITHIN,
        what="not all workers went on",
    )


def newest_claim(stage: Stage) -> float:
    """When a job was last given out, by the ledger's clock."""
    if stage.setting.engine == "sqlite":
        with closing(sqlite3.connect(stage.store, timeout=30)) as file:
            found = file.execute(NEWEST_CLAIM_IN_FILE).fetchone()
        return -1.0 if found is None else time.monotonic() - (time.time() - float(found[0]))
    with stage.server.connect() as connection:
        row = connection.execute(NEWEST_CLAIM).fetchone()
    return -1.0 if row is None else time.monotonic() - float(row[0])


class Outage(Struct, frozen=True, kw_only=True):
    """When somebody began to end a server or a line, when it was gone, and when it was there again."""

    how: str
    began: float
    down: float
    up: float


def restart(
    stage: Stage, how: How | Literal["kill"], *, down_for: float = 0.0, within: float = 60.0
) -> Outage:
    """Stop or kill the server, and start it after so many seconds. A smart stop ends by force after `within`."""
    server, began = stage.server, time.monotonic()
    before = server.pid
    if how == "kill":
        server.kill()
    else:
        server.stop(how, within=within)
    down = time.monotonic()
    time.sleep(down_for)
    server.start()
    if server.pid == before:
        stage.setting.missed.append("the server was not ended")
    return Outage(how=how, began=began, down=down, up=time.monotonic())


class Resumption(Struct, kw_only=True):
    """How work went on after outages: seconds from their beginning, and from the return, to the next claim.

    `in_flight` is how many runs were under way when each began.
    """

    recovery: list[float] = field(default_factory=list)
    pick_up: list[float] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def resumption(
    outages: Sequence[Outage], evidence: Evidence, *, within: float = PICKED_UP_WITHIN
) -> Resumption:
    """Held against the audit; what was under way must have been something, and work must go on in time."""
    claims, found = claims_of(evidence), Resumption()
    all_runs = [run for own in runs(evidence.records).values() for run in own]
    for outage in outages:
        found.in_flight.append(
            sum(run.began < outage.began and (run.ended or outage.began) >= outage.began for run in all_runs)
        )
        after = next((at for at in claims if at > outage.down), None)
        if after is None:
            found.wrong.append(f"Nothing was given out after an outage ({outage.how}).")
            continue
        found.recovery.append(after - outage.began)
        found.pick_up.append(max(0.0, after - outage.up))
        if found.pick_up[-1] > within:
            found.wrong.append(
                f"Work went on {found.pick_up[-1]:.1f} s after the return ({outage.how}), and not within {within:g} s."
            )
    if not all(found.in_flight):
        found.wrong.append("Nobody was at work when an outage began.")
    return found


def claims_of(evidence: Evidence) -> list[float]:
    """When jobs were given out, by the ledger's clock."""
    assert evidence.offset is not None
    return sorted(
        change.at - evidence.offset
        for change in evidence.changes
        if change.table == "running" and change.deed == "in"
    )
