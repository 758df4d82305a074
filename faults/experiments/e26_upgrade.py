"""E26: the schema is migrated under load, and workers of two releases work side by side.

The next release is a copy of this one with one migration more, which adds a column to the widest table, a table, an
index and a function, and replaces a function that everybody is using. Its own statements need what is new. Workers of
this release must not notice; nobody may wait for a lock for longer than a second, as the server's log tells.

The release after that has a migration that says that it is `breaking`. Workers that do not know it stop by themselves
and say why, and no more of them begin; those of the new release do the rest.
"""

import os
import shutil
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from subprocess import Popen

from msgspec import Struct

from faults.evidence.checker import check
from faults.evidence.records import read
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import ROOT, SOURCE, Stage, descendants
from shigoto.engine.postgres.schema import shipped

RATE = 100  # jobs in a second
ENDLESS = 10_000_000
LEASE = "6"  # seconds; with it a worker looks at the store every second or two
READY_WITHIN = 30.0
STOPPED_WITHIN = 15.0
LOCKS = {"log_lock_waits": "on", "deadlock_timeout": "1s"}
WAITED = "still waiting for"
TASKS = "asynchronous,asynchronous,in_a_thread,transactional"
PLACE = Path("shigoto/engine/postgres")

ADDITIVE = """\
-- What another release may add.
ALTER TABLE shigoto.job ADD COLUMN note text;
CREATE TABLE shigoto.remark (number bigint PRIMARY KEY, text text NOT NULL);
CREATE INDEX running_by_lane ON shigoto.running (lane);
CREATE FUNCTION shigoto.release() RETURNS integer LANGUAGE sql STABLE AS 'SELECT 2';
DO $$
BEGIN
  EXECUTE pg_get_functiondef('shigoto.complete'::regproc);
END
$$;
"""
BREAKING = """\
-- breaking: jobs are claimed in another way from now on.
DO $$
BEGIN
  EXECUTE replace(replace(pg_get_functiondef('shigoto.claim'::regproc),
    'shigoto.claim(', 'shigoto.claim_jobs('), 'claim.worker', 'claim_jobs.worker');
END
$$;
DROP FUNCTION shigoto.claim;
"""


class Release(Struct, frozen=True):
    """A build of Shigoto, somewhere on this machine."""

    name: str
    source: Path

    def environment(self, **more: str) -> dict[str, str]:
        """For processes that are to run it."""
        return {"PYTHONPATH": os.pathsep.join([str(self.source), str(ROOT), *filter(None, sys.path)]), **more}


def next_release(before: Path, folder: Path, *, migration: str, old: str, new: str) -> Path:
    """A copy of a build, with one migration more, and one statement that needs it."""
    shutil.copytree(before / "shigoto", folder / "shigoto", ignore=shutil.ignore_patterns("__pycache__"))
    migrations = folder / PLACE / "migrations"
    number = 1 + max(int(path.name[:4]) for path in migrations.glob("*.sql"))
    (migrations / f"{number:04d}_next.sql").write_text(migration)
    statements = folder / PLACE / "statements" / "path.sql"
    text = statements.read_text()
    if text.count(old) != 1:
        raise ValueError(f"{old!r} is there {text.count(old)} times")
    statements.write_text(text.replace(old, new))
    return folder


def run(setting: Setting) -> Outcome:
    """Two migrations, with workers before, between and after."""
    this = Release("this", SOURCE)
    following = Release(
        "next",
        next_release(
            SOURCE,
            setting.folder / "next",
            migration=ADDITIVE,
            old="SELECT shigoto.now()\n",
            new="SELECT shigoto.now() FROM shigoto.release()\n",
        ),
    )
    last = Release(
        "last",
        next_release(
            following.source,
            setting.folder / "last",
            migration=BREAKING,
            old="shigoto.claim(",
            new="shigoto.claim_jobs(",
        ),
    )
    with Stage(setting, server_settings=LOCKS) as stage:
        return Upgrade(stage, (this, following, last)).run(setting.of(1.0, 25.0))


class Upgrade:
    """The story, in the order in which it happens."""

    def __init__(self, stage: Stage, releases: Sequence[Release]) -> None:
        self._stage = stage
        self._this, self._next, self._last = releases
        self._wrong: list[str] = []
        self._logs: dict[int, Path] = {}
        self._ready = 0

    def run(self, seconds: float) -> Outcome:
        """Each part lasts for so long."""
        stage = self._stage
        old = [self._worker(self._this) for _ in range(2)]
        pace = ["--rate", str(RATE), "--milliseconds", "5,50", "--tasks", TASKS]
        producer = stage.producer(ENDLESS, *pace)
        stage.wait_until(lambda: self._at_work(old, 0.0), seconds=READY_WITHIN, what="nothing began")
        time.sleep(seconds)
        additive = self._migrate(self._next)
        migrated = time.monotonic()
        both = [*old, *(self._worker(self._next) for _ in range(2))]
        stage.wait_until(
            lambda: self._at_work(both, migrated), seconds=READY_WITHIN, what="not both releases worked"
        )
        time.sleep(seconds)
        for worker in old:
            stage.do("term", worker, whole_tree=False)
        self._wrong += [f"an old worker ended with {code}" for each in old if (code := each.wait(60))]
        breaking = self._migrate(self._last)
        broken = time.monotonic()
        stopped = self._see_stop(both[2:], broken)
        newest = [self._worker(self._last) for _ in range(2)]
        stage.wait_until(
            lambda: self._at_work(newest, broken), seconds=READY_WITHIN, what="the newest did not work"
        )
        self._refuse(self._next)
        time.sleep(seconds)
        stage.do("term", producer, whole_tree=False)
        producer.wait(60)
        stage.rest(120)
        evidence = stage.evidence()
        outcome = check(evidence).outcome(sum(record.what == "ok" for record in evidence.records))
        waits = stage.server.folder.joinpath("log").read_text(errors="replace").count(WAITED)
        self._wrong += [f"{waits} times somebody waited for a lock for longer than a second"] if waits else []
        outcome.wrong += self._wrong + unfinished(evidence.states.values())
        outcome.figures |= {
            "lock waits of more than a second": waits,
            "seconds of the migration": round(additive, 2),
            "seconds of the breaking one": round(breaking, 2),
            "seconds until the last old worker had stopped": stopped and round(stopped, 1),
            "refused calls of producers": sum(record.what == "err" for record in evidence.records),
            "longest pause between starts, seconds": round(longest_pause(stage), 2),
        }
        return outcome

    def _worker(self, release: Release) -> Popen[bytes]:
        self._ready += 1
        file = self._stage.folder / f"ready-{self._ready}"
        log = self._stage.folder / f"worker-{self._ready}.log"
        options = ["--lease", LEASE, "--concurrency", "10", "--threads", "4", "--children", "1"]
        worker = self._stage.worker(
            *options,
            "--log-level",
            "error",
            "--ready-file",
            str(file),
            environment=release.environment(),
            output=log,
        )
        self._logs[worker.pid] = log
        self._stage.wait_until(
            lambda: file.exists() or worker.poll() is not None,
            seconds=READY_WITHIN,
            what=f"a worker of the {release.name} release was not ready",
        )
        return worker

    def _migrate(self, release: Release) -> float:
        """As the role that owns the schema, by the command; tells how many seconds it took."""
        environment = release.environment(SHIGOTO_URL=self._stage.database.owner_url)
        said = self._stage.folder / f"migrate-{release.name}.txt"
        began = time.monotonic()
        words = [sys.executable, "-m", "shigoto", "migrate"]
        code = self._stage.start(words, environment=environment, output=said).wait(120)
        if code or "_next." not in said.read_text():
            self._wrong.append(f"the migration to the {release.name} release: {said.read_text()[-300:]}")
        return time.monotonic() - began

    def _at_work(self, workers: Sequence[Popen[bytes]], since: float) -> bool:
        """Whether each of them has begun a job since then."""
        begun = {
            record.pid for record in read(self._stage.ledger) if record.what == "start" and record.at > since
        }
        return all(begun & {worker.pid, *descendants(worker.pid)} for worker in workers)

    def _see_stop(self, workers: Sequence[Popen[bytes]], since: float) -> float | None:
        """That they end by themselves, and say why; tells after how many seconds."""
        gone = self._stage.wait_until(
            lambda: all(worker.poll() is not None for worker in workers),
            seconds=STOPPED_WITHIN,
            what="workers go on beside a schema that is no longer theirs",
        )
        after = time.monotonic() - since
        for worker in workers:
            said = self._logs[worker.pid].read_text(errors="replace")
            if worker.poll() is not None and not is_clear(said):
                self._wrong.append(f"a worker stopped without a clear reason: {said[-300:]}")
            if worker.poll() is None:
                self._stage.do("term", worker, whole_tree=False)
        return after if gone else None

    def _refuse(self, release: Release) -> None:
        """That nobody of this release begins any more."""
        worker = self._worker(release)
        self._stage.wait_until(
            lambda: worker.poll() is not None, seconds=READY_WITHIN, what="an old worker began all the same"
        )
        said = self._logs[worker.pid].read_text(errors="replace")
        if worker.poll() == 0 or not is_clear(said):
            self._wrong.append(f"an old worker ended with {worker.poll()} and said: {said[-300:]}")


def is_clear(said: str) -> bool:
    """Whether somebody who reads this knows what is wrong, and what to do."""
    version = len(shipped()) + 2
    return f"has schema version {version}" in said and "Upgrade shigoto here" in said


def longest_pause(stage: Stage) -> float:
    """Between two jobs that began one after the other, whoever ran them."""
    moments = sorted(record.at for record in read(stage.ledger) if record.what == "start")
    return max((after - before for before, after in pairwise(moments)), default=0.0)


EXPERIMENT = Experiment(id="E26", title="the schema is migrated under load", act=run, engines=("postgres",))
