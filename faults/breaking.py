"""How a build is broken on purpose, in a copy of the source, and who must notice.

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

    What was compiled before is copied too, but for what is just being written: else each process of a build would
    compile the whole package.
    """
    source = folder / "src"
    shutil.copytree(SOUND, source, ignore=shutil.ignore_patterns("*.pyc.*"))
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
    ended = _python(["-m", "faults.breaking", experiment, str(place), str(seed)], source, folder)
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


if __name__ == "__main__":
    main()
