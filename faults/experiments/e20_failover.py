"""E20: the server dies for good, and its standby takes its place.

Workers and producers know both by one address, `postgresql://…@one,other/…?target_session_attrs=read-write`. The old
server is killed before the standby is promoted, so that there are never two.

    synchronous     nothing is acknowledged before the standby has it: all promises hold, across the failover
    asynchronous    what was acknowledged and had not reached the standby is gone. That is PostgreSQL's promise, and not
                    ours to mend; how much it is, is measured: with a standby that keeps up, and with one that has heard
                    nothing for a second. Nothing may be gone that is older than that.
"""

import time
from contextlib import closing

from msgspec import Struct, structs

from faults.evidence.audit import audit_of
from faults.evidence.checker import Evidence, check
from faults.evidence.moves import stories
from faults.evidence.records import read
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage
from faults.stores.database import NAME, RUNTIME
from faults.stores.host import Host
from faults.tools.proxy import Proxy, Refuse, Silent
from faults.tools.standby import follow, followers, promote, wait_for_standby

RATE = 200  # jobs in a second
PICKED_UP_WITHIN = 5.0  # seconds from the promotion to the next job
KEEPS_UP = 1.0  # seconds that a standby is behind at most, if nobody holds it up
SLACK = 0.5  # seconds between a commit and the producer's line about it
TASKS = "asynchronous,asynchronous,in_a_thread,transactional"


class Way(Struct, frozen=True):
    """How the standby follows: whether commits wait for it, and for how many seconds it hears nothing in the end."""

    name: str
    waits: bool
    deaf_for: float = 0.0


WAYS = (
    Way("synchronous", waits=True),
    Way("asynchronous", waits=False),
    Way("asynchronous, a second behind", waits=False, deaf_for=1.0),
)


def run(setting: Setting) -> Outcome:
    """One failover in each way."""
    total = Outcome()
    for way in setting.of(WAYS[:1], WAYS):
        part = apart(setting, way)
        outcome = fail_over(part, way)
        outcome.wrong += part.missed
        setting.say(f"{way.name}: {outcome.figures} {outcome.wrong}")
        total.figures[way.name] = outcome.figures
        total.wrong += [f"{way.name}: {text}" for text in outcome.wrong]
        total.recovery += outcome.recovery
        if way.waits:
            total.n, total.measured = outcome.n, outcome.measured
            for name, count in outcome.zeros.items():
                setattr(total, name, count)
    return total


def apart(setting: Setting, way: Way) -> Setting:
    """Each way has a folder of its own, but for the first: a server may have been prepared for that one."""
    if way is WAYS[0]:
        return structs.replace(setting, missed=[])
    folder = setting.folder / way.name.replace(",", "").replace(" ", "-")
    folder.mkdir()
    return structs.replace(setting, folder=folder, missed=[])


def fail_over(setting: Setting, way: Way) -> Outcome:
    """Work, lose the server, go on with the other."""
    before, after = setting.of((1.0, 1.0), (20.0, 20.0))
    with Stage(setting) as stage:
        proxy = stage.between(Proxy(stage.server.port, seed=setting.seed))
        standby = follow(stage.server, setting.folder / "standby", stage.pen, database=NAME, port=proxy.port)
        stage.between(closing(standby))  # it ends after the workers, who take their leave of it
        return _fail_over(stage, standby, proxy, way, before, after)


def _fail_over(stage: Stage, standby: Host, proxy: Proxy, way: Way, before: float, after: float) -> Outcome:
    setting, url = stage.setting, address(stage, standby)
    if way.waits:
        wait_for_standby(stage.server)
    wanted = ("streaming", "sync" if way.waits else "async")
    stage.wait_until(lambda: wanted in followers(stage.server), seconds=30, what="the standby did not follow")
    for _ in range(2):
        stage.worker("--lease", "10", "--concurrency", "20", "--threads", "4", "--children", "1", url=url)
    stage.wait_until(lambda: len(stage.app.workers()) == 2, seconds=30, what="no workers")
    pace = ["--rate", str(RATE / 2), "--milliseconds", "5,50", "--tasks", TASKS, "--tries", "60"]
    jobs = round(RATE / 2 * (before + after))
    producers = [stage.producer(jobs, *pace, url=url) for _ in range(2)]
    time.sleep(before)
    if way.deaf_for:
        proxy.mode = Silent()
        time.sleep(way.deaf_for)
    killed = time.monotonic()
    stage.server.kill()
    proxy.cut()
    proxy.mode = Refuse()
    promote(standby)
    promoted = time.monotonic()
    stage.wait_until(
        lambda: begun_after(stage, promoted) is not None,
        seconds=PICKED_UP_WITHIN,
        what="no job began after the promotion",
    )
    picked_up = begun_after(stage, promoted)
    codes = [producer.wait(120) for producer in producers]
    with closing(audit_of(standby.url_of(NAME))) as audit:
        stage.wait_until(audit.at_rest, seconds=120, what="the standby did not come to rest")
        evidence = Evidence(
            records=read(stage.ledger),
            changes=audit.changes(),
            states=audit.states(),
            effects=audit.effects(),
            workers=audit.workers(),
        )
    outcome = judged(evidence, killed, way)
    outcome.recovery = [] if picked_up is None else [picked_up - promoted]
    outcome.wrong += [f"a producer ended with {code}" for code in codes if code]
    outcome.figures |= {
        "acknowledged": sum(record.what == "ok" for record in evidence.records),
        "told to try again": sum(record.what == "err" for record in evidence.records),
        "seconds without a server": round(promoted - killed, 2),
        "seconds from promotion to the next job": [round(each, 2) for each in outcome.recovery],
    }
    if outcome.n != 2 * jobs and setting.full:
        outcome.wrong.append(f"{outcome.n} jobs were acknowledged, and not {2 * jobs}")
    return outcome


def address(stage: Stage, standby: Host) -> str:
    """Both servers as one address: whoever of the two takes changes."""
    hosts = f"127.0.0.1:{stage.server.port},127.0.0.1:{standby.port}"
    database = stage.database
    return f"postgresql://{RUNTIME}:{database.password}@{hosts}/{NAME}?target_session_attrs=read-write"


def begun_after(stage: Stage, moment: float) -> float | None:
    """When the first job began after this."""
    found = (record.at for record in read(stage.ledger) if record.what == "start" and record.at > moment)
    return next(found, None)


def judged(evidence: Evidence, killed: float, way: Way) -> Outcome:
    """All counts, where commits wait for the standby; else only what may be lost, and that nothing older is."""
    findings = check(evidence)
    acknowledged = {record.job: record.at for record in evidence.records if record.what == "ok"}
    if way.waits:
        outcome = findings.outcome(n=len(acknowledged))
        outcome.wrong += unfinished(evidence.states.values())
        return outcome
    outcome = Outcome(n=len(acknowledged))
    gone = sorted(killed - acknowledged[job] for job in findings.vanished)
    allowed = KEEPS_UP + way.deaf_for + SLACK
    if gone and gone[-1] > allowed:
        outcome.wrong.append(f"a job is gone that was acknowledged {gone[-1]:.2f} s before the server died")
    if way.deaf_for and not gone:
        outcome.wrong.append("nothing is gone: the standby was not behind")
    bad = [f"{story.job}: {text}" for story in stories(evidence.changes).values() for text in story.bad]
    outcome.wrong += bad[:3] + unfinished(evidence.states.values())
    outcome.figures = {
        "acknowledged and gone": len(gone),
        "the oldest of them, seconds before the end": round(gone[-1], 3) if gone else None,
        "run again though they had ended": sum(findings.reruns.values()),
    }
    return outcome


EXPERIMENT = Experiment(
    id="E20", title="the server dies, and its standby takes over", act=run, engines=("postgres",)
)
