"""E58: builds that are broken on purpose. Whoever guards a promise must notice that it is broken, and only then."""

import time
from pathlib import Path

from faults.breaking import SOUND, Guard, Mutant, Run, Worlds, build, complaints
from faults.experiment import Experiment, Outcome, Setting
from faults.mutants import MUTANTS


def run(setting: Setting) -> Outcome:
    """Break one promise after the other; in the full form each is seen by its experiment as well, where it has one."""
    outcome = Outcome(n=len(MUTANTS))
    for number, mutant in enumerate(MUTANTS, 1):
        folder = setting.folder / f"mutant-{number}"
        source = build(mutant, folder)
        caught: dict[str, float] = {}
        for guard in guards(mutant, full=setting.full):
            began = time.monotonic()
            try:
                said = complaints(guard, source, folder, setting.seed)
            except RuntimeError as error:
                outcome.wrong.append(f"{shown(guard)} cannot be done while {mutant.name}: {error}")
                continue
            if said:
                caught[shown(guard)] = round(time.monotonic() - began, 1)
            else:
                outcome.wrong.append(f"{shown(guard)} does not notice that {mutant.name}")
        outcome.figures[mutant.name] = caught | ({"no experiment": mutant.alone} if mutant.alone else {})
        setting.say(f"E58: {mutant.name}: {', '.join(caught) or 'NOT NOTICED'}")
    outcome.wrong += _sound(setting)
    return outcome


def guards(mutant: Mutant, *, full: bool) -> list[Guard]:
    """Those that must notice this one."""
    if full and mutant.run is not None:
        return list(dict.fromkeys([mutant.guard, mutant.run]))
    return [mutant.guard]


def shown(guard: Guard) -> str:
    """The guard in a few words."""
    match guard:
        case Run(experiment):
            return experiment
        case Worlds(engine, first, count):
            return f"E57, {count} worlds in {engine} from {first}"
        case _:
            return " ".join(str(part) for part in (type(guard).__name__.lower(), *_parts(guard)))


def _parts(guard: Guard) -> list[object]:
    return [getattr(guard, name) for name in guard.__struct_fields__]


def _sound(setting: Setting) -> list[str]:
    """What the same guards say of the build that is not broken: nothing, or they prove nothing."""
    wrong: list[str] = []
    folder = setting.folder / "sound"
    folder.mkdir()
    found = widest([one for each in MUTANTS for one in guards(each, full=setting.full)])
    for number, guard in enumerate(found):
        place = Path(folder, str(number))
        place.mkdir()
        wrong += [
            f"{shown(guard)} complains of the sound build: {said}" for said in complaints(guard, SOUND, place)
        ]
    return wrong


def widest(found: list[Guard]) -> list[Guard]:
    """Each once; of worlds that begin with the same one, those that have the others in them.

    An experiment is done once, and must have nothing to say at all.
    """
    worlds = sorted((guard for guard in found if isinstance(guard, Worlds)), key=lambda guard: guard.count)
    others = [
        Run(guard.experiment, ("",)) if isinstance(guard, Run) else guard
        for guard in found
        if not isinstance(guard, Worlds)
    ]
    return [*{(each.engine, each.first): each for each in worlds}.values(), *dict.fromkeys(others)]


EXPERIMENT = Experiment(id="E58", title="builds that are broken on purpose", act=run)
