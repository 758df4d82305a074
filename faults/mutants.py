"""Builds that are broken on purpose, each in a copy of the source, and who must notice.

A proof that cannot fail proves nothing. So each promise is broken once, by a small change of the text, and what is said
to guard it must see the difference: a world of the simulation, a test, or an experiment. The product itself knows
nothing of this.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from msgspec import Struct, json

from faults.experiment import Outcome
from faults.simulation.many import ROOT, live_many, told

SOUND = ROOT / "src"  # the build that is not broken


class Patch(Struct, frozen=True):
    """In this file of the package, this text, which must be there once, becomes that."""

    file: str
    old: str
    new: str


class Worlds(Struct, frozen=True):
    """These worlds of the simulation."""

    engine: str
    first: int
    count: int


class Test(Struct, frozen=True):
    """One test, by its file and its name."""

    file: str
    name: str


class Duel(Struct, frozen=True):
    """A duel of `faults/duels.py`."""

    name: str


class Run(Struct, frozen=True):
    """The short form of an experiment, which must find what is broken: one of these counts, or a sentence with such
    words. That it fails in any other way is no proof. It is done up to `tries` times, each with the next seed."""

    experiment: str
    sees: tuple[str, ...]
    tries: int = 1


Guard = Worlds | Test | Duel | Run


class Mutant(Struct, frozen=True, kw_only=True):
    """One broken build. `guard` is the cheapest that notices, `run` the experiment that stands for the promise.

    Worlds of the simulation are those of E57. `alone` says why no experiment can see it, where that is so.
    """

    name: str
    patches: tuple[Patch, ...]
    guard: Guard
    run: Run | None = None
    alone: str = ""


def build(mutant: Mutant, folder: Path) -> Path:
    """A copy of the source with the break in it. Raises ValueError if there is nothing to break any more.

    What was compiled before is copied too: else each process of a build would compile the whole package.
    """
    source = folder / "src"
    shutil.copytree(SOUND, source)
    for patch in mutant.patches:
        path = source / "shigoto" / patch.file
        text = path.read_text()
        if text.count(patch.old) != 1:
            raise ValueError(
                f"mutant {mutant.name!r}: {patch.file} has {text.count(patch.old)} times what should be broken there;"
                f" renew the patch: {patch.old!r}"
            )
        path.write_text(text.replace(patch.old, patch.new))
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
    return source


def complaints(guard: Guard, source: Path, folder: Path, seed: int = 0) -> list[str]:
    """What the guard has to say of the build in `source`; nothing if it finds nothing wrong."""
    match guard:
        case Worlds(engine, first, count):
            tally = live_many(
                first, count, "--engine", engine, "--until-wrong", processes=1, source=source, hash_seed="0"
            )
            return told(tally.failing, engine)
        case Test(file, name):
            words = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n0", file, "-k", name]
            return _said(words, source, folder, wrong=1)
        case Duel(name):
            return _said(["-m", "faults.duels", name, str(folder)], source, folder, wrong=3)
        case Run(experiment, sees, tries):
            for number in range(tries):
                said = _experiment(experiment, source, folder / f"try-{number}", seed + number)
                if found := [text for text in said if any(word in text for word in sees)]:
                    return found
            return []


def _said(words: list[str], source: Path, folder: Path, *, wrong: int) -> list[str]:
    """What a program says of what is wrong, and then it ends with that code."""
    ended = _python(words, source, folder)
    if ended.returncode in (0, wrong):
        return [ended.stdout[-2000:]] if ended.returncode else []
    raise RuntimeError(
        f"{' '.join(words)} ended with {ended.returncode}:\n{ended.stdout[-4000:]}{ended.stderr[-4000:]}"
    )


def _experiment(experiment: str, source: Path, folder: Path, seed: int) -> list[str]:
    """All that an experiment has to say against a build. That it cannot even be done is none of that."""
    place = folder / f"run-{experiment}"
    place.mkdir(parents=True)
    ended = _python(["-m", "faults.mutants", experiment, str(place), str(seed)], source, folder)
    if ended.returncode:
        raise RuntimeError(f"{experiment} ended with {ended.returncode}:\n{ended.stderr[-4000:]}")
    outcome = json.decode(ended.stdout.splitlines()[-1], type=Outcome)
    if outcome.skipped:
        raise RuntimeError(f"{experiment} cannot run here: {outcome.skipped}")
    return [f"{name}: {count}" for name, count in outcome.zeros.items() if count] + outcome.wrong


def _python(words: list[str], source: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(ROOT), str(source), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *words],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def main() -> None:
    """Run one experiment on the shigoto that this process has: EXPERIMENT FOLDER SEED; the last line is its outcome."""
    from faults.experiment import Setting
    from faults.experiments import all_experiments

    experiment, folder, seed = sys.argv[1:4]
    setting = Setting(engine="sqlite", folder=Path(folder), seed=int(seed), full=False, say=lambda _: None)
    print(json.encode(all_experiments()[experiment].run(setting), enc_hook=str).decode())


CLAIMED = "    if leases:\n        moved = (json.encode(lanes).decode(), *_place(leases[-1]), now)\n"
WITHOUT_LOCK = """    if leases:
        import time
        yield Statement("COMMIT")
        time.sleep(0.003)
        while True:
            try:
                yield Statement("BEGIN IMMEDIATE")
                break
            except Exception:
                time.sleep(0.001)
        moved = (json.encode(lanes).decode(), *_place(leases[-1]), now)
"""
RESCUED = "        ends.append((row, ended, row.settled_token))\n    moves = yield from move(now, ends)\n"
WITHOUT_STATE = """        ends.append((row, ended, row.settled_token))
    if ends:
        import time
        from shigoto.engine.sql.command import Statement
        yield Statement("COMMIT")
        time.sleep(1.2)
        while True:
            try:
                yield Statement("BEGIN IMMEDIATE")
                break
            except Exception:
                time.sleep(0.001)
    moves = yield from move(now, ends)
"""
COMMITTED = """            value = drive(op, lambda command: execute(self._connection, command))
            self._plainly("COMMIT")
"""
WITHOUT_TRANSACTION = """            self._plainly("COMMIT")
            self._plainly("BEGIN IMMEDIATE")
            value = drive(op, lambda command: execute(self._connection, command))
            self._plainly("COMMIT")
"""
DIRECTLY = "                    value = self._write_directly(connection, direct)\n"
ACKNOWLEDGED_EARLY = f"""                    if connection.in_transaction:
                        connection.execute("COMMIT")
                    connection.execute("BEGIN IMMEDIATE")
{DIRECTLY}"""
CONFORMANCE = "tests/engines/test_sqlite.py"
ALIVE = "\n  AND EXISTS (SELECT 1 FROM shigoto_worker WHERE id = ?2 AND fenced_at IS NULL)"
HOLDER = f"r.worker = ?2{ALIVE}\n\n-- The same for runs"
PATH_SQL = "engine/sqlite/statements/path.sql"

# One test stands for the other: a token is given to one worker only, and a worker has each job once.
HALF = "the other half of the test still refuses whatever comes from others"
BEATS = Run("E10", ("taken from workers that lived", "unlicensed"))

MUTANTS = (
    Mutant(
        name="a completion is accepted with any token",
        patches=(
            Patch(PATH_SQL, f"WHERE r.token = e.value ->> 1 AND {HOLDER}", f"WHERE {HOLDER}"),
            Patch(PATH_SQL, "WHERE r.token = ?4 AND r.worker = ?2", "WHERE ?4 = ?4 AND r.worker = ?2"),
        ),
        guard=Test(CONFORMANCE, "test_an_older_lease_of_a_job_that_the_same_worker_runs_again_ends_nothing"),
        alone=HALF,
    ),
    Mutant(
        name="a completion is accepted from any worker",
        patches=(
            Patch(
                PATH_SQL,
                f"WHERE r.token = e.value ->> 1 AND {HOLDER}",
                f"WHERE r.token = e.value ->> 1 OR {HOLDER}",
            ),
            Patch(PATH_SQL, "WHERE r.token = ?4 AND r.worker = ?2", "WHERE r.token = ?4 AND ?2 = ?2"),
        ),
        guard=Test(CONFORMANCE, "test_another_workers_lease_is_refused"),
        alone=HALF,
    ),
    Mutant(
        name="a completion is accepted with any token and from any worker",
        patches=(
            Patch(
                PATH_SQL,
                f"WHERE r.token = e.value ->> 1 AND {HOLDER}",
                "WHERE ?2 = ?2\n\n-- The same for runs",
            ),
            Patch(PATH_SQL, f"WHERE r.token = ?4 AND r.worker = ?2{ALIVE}", "WHERE ?4 = ?4 AND ?2 = ?2"),
        ),
        guard=Test(CONFORMANCE, "test_another_workers_lease_is_refused"),
        run=Run("E03", ("bad_settles", "after_final"), tries=3),
    ),
    Mutant(
        name="a claim reads and takes in two transactions",
        patches=(Patch("engine/sqlite/claiming.py", CLAIMED, WITHOUT_LOCK),),
        guard=Test(CONFORMANCE, "test_no_job_is_given_out_twice"),
        run=Run("E29", ("bad_settles", "unlicensed", "overlaps"), tries=3),
    ),
    Mutant(
        name="an enqueue is acknowledged before its commit",
        patches=(
            Patch("engine/sqlite/driver.py", DIRECTLY, ACKNOWLEDGED_EARLY),
            Patch(
                "engine/sqlite/driver.py",
                '        self.patiently(lambda: connection.execute("BEGIN IMMEDIATE"))\n',
                "        if connection.in_transaction:\n"
                '            connection.execute("COMMIT")\n'
                '        self.patiently(lambda: connection.execute("BEGIN IMMEDIATE"))\n',
            ),
        ),
        guard=Duel("kill after the last word"),
        run=Run("E02", ("acknowledged and is not there",), tries=3),
    ),
    Mutant(
        name="beats come from the event loop, and nobody vouches",
        patches=(
            Patch("worker/keeper.py", '            if self._beats == "loop":\n', "            if True:\n"),
            Patch(
                "worker/supervisor/vouch.py",
                "        await asyncio.sleep(pause)\n",
                "        await asyncio.sleep(86_400 + pause)\n",
            ),
        ),
        guard=BEATS,
        run=BEATS,
    ),
    Mutant(
        name="a worker is fenced at the first look",
        patches=(Patch("worker/sweeper.py", "ripe = now - self._lease / 3", "ripe = now"),),
        guard=Worlds("memory", 0, 300),
        run=Run("E04", ("A sleep cost",), tries=3),
    ),
    Mutant(
        name="a worker is fenced at once after an outage",
        patches=(
            Patch(
                "worker/sweeper.py",
                "self._no_fence_before = now + self._lease",
                "self._no_fence_before = now",
            ),
        ),
        guard=Worlds("memory", 0, 300),
    ),
    Mutant(
        name="a sweep puts jobs back that have been settled meanwhile",
        # A worker that is fenced is not heard any more, and that alone would be enough: so that is broken, too.
        patches=(
            Patch("engine/sql/repairing.py", RESCUED, WITHOUT_STATE),
            Patch(PATH_SQL, HOLDER, HOLDER.replace(ALIVE, "")),
            Patch(
                PATH_SQL,
                f"WHERE r.token = ?4 AND r.worker = ?2{ALIVE}",
                "WHERE r.token = ?4 AND r.worker = ?2",
            ),
        ),
        guard=Duel("sweep against settle"),
        run=Run("E03", ("bad_settles", "after_final"), tries=3),
    ),
    Mutant(
        name="a rescue counts as settled by the worker that lost the job",
        patches=(
            Patch(
                "engine/sql/repairing.py",
                "ends.append((row, ended, row.settled_token))",
                "ends.append((row, ended, row.token))",
            ),
        ),
        guard=Worlds("sqlite", 0, 60),
    ),
    Mutant(
        name="a settlement that is repeated is refused",
        patches=(
            Patch(
                "engine/sql/settling.py",
                "{s.number: Verdict.REPEATED for s in repeated}",
                "{s.number: Verdict.LOST for s in repeated}",
            ),
        ),
        guard=Worlds("sqlite", 0, 60),
    ),
    Mutant(
        name="unique keys are unique across tenants",
        patches=(Patch(PATH_SQL, "WHERE k.tenant = ?1 AND k.key = ?2", "WHERE ?1 = ?1 AND k.key = ?2"),),
        guard=Test(CONFORMANCE, "test_tenants_do_not_meet"),
        alone="no experiment has tenants yet",
    ),
    Mutant(
        name="a handler's statements are committed before its completion",
        patches=(Patch("engine/sqlite/transaction.py", COMMITTED, WITHOUT_TRANSACTION),),
        guard=Test(CONFORMANCE, "test_a_block_whose_last_operation_raises_is_rolled_back"),
        run=Run("E02", ("effects",), tries=8),
    ),
    Mutant(
        name="a release counts as a failure",
        patches=(
            Patch(
                "model/states.py",
                "_replace(was, releases=was.releases + 1)",
                "_replace(was, releases=was.releases + 1, failures=was.failures + 1)",
            ),
        ),
        guard=Worlds("memory", 0, 300),
    ),
    Mutant(
        name="only the doorbell wakes a worker",
        patches=(
            Patch(
                "worker/listener.py",
                "                self._look()\n                if rang:\n",
                "                if rang:\n                    self._look()\n",
            ),
        ),
        guard=Worlds("memory", 0, 300),
    ),
    Mutant(
        name="jobs are made ready before they are due",
        patches=(
            Patch(
                "engine/sqlite/promoting.py",
                "    if due is None or due > now:\n",
                "    now += 3_000\n    if due is None or due > now:\n",
            ),
        ),
        guard=Worlds("sqlite", 0, 60),
    ),
    Mutant(
        name="a lease is started however old it is",
        patches=(Patch("worker/strands.py", "if ended >= station.may_start_until:", "if ended < 0:"),),
        guard=Worlds("memory", 0, 300),
    ),
    Mutant(
        name="a beat disowns a claim whose answer is on its way",
        patches=(
            Patch(
                "engine/sql/repairing.py",
                "(number, token) not in known and now - claimed_at > CLAIM_DEADLINE:",
                "(number, token) not in known:",
            ),
        ),
        guard=Worlds("sqlite", 0, 60),
    ),
    Mutant(
        name="exclusive runs outlast their lease",
        patches=(Patch("worker/exclusive.py", "PART = 0.9 ", "PART = 90.0 "),),
        guard=Worlds("memory", 1405, 1),
    ),
)


if __name__ == "__main__":
    main()
