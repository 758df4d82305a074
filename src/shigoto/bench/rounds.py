"""All measures, one after the other, in rounds: what disturbs a machine for a while shall not hit one measure alone."""

from collections.abc import Callable, Collection
from functools import partial

from msgspec import Struct

from shigoto.bench import MEASURES
from shigoto.bench.bare import bare_inserts
from shigoto.bench.figures import Figure
from shigoto.bench.place import Place, Stage
from shigoto.bench.report import BARE, Report, make_report
from shigoto.bench.running import drain, latency
from shigoto.bench.storing import by_many, in_bulk, one_by_one

WITHIN = 2.0  # seconds for one measure that commits job by job; on a slow disk there are fewer jobs in it


class Wishes(Struct, frozen=True, kw_only=True):
    """How much to measure. `jobs` is how many are stored one by one; the other measures have more, or fewer."""

    jobs: int
    rounds: int
    processes: int
    only: Collection[str] = tuple(MEASURES)


class Step(Struct, frozen=True, kw_only=True):
    """How far it is: what is measured now, or has just been if there is a figure."""

    round: int
    rounds: int
    done: int
    steps: int
    measure: str
    figure: Figure | None = None


Watch = Callable[[Step], None]
Measure = Callable[[Stage], Figure]


def run_rounds(place: Place, wishes: Wishes, watch: Watch) -> Report:
    """Measure what is wished for. Raises BenchFailed if jobs are missing afterwards."""
    names = [*([] if place.folder is None else [BARE]), *(name for name in MEASURES if name in wishes.only)]
    figures: dict[str, list[Figure]] = {name: [] for name in names}
    steps = len(names) * wishes.rounds
    for done in range(steps):
        name = names[done % len(names)]
        number = done // len(names) + 1
        step = partial(Step, round=number, rounds=wishes.rounds, steps=steps, measure=name)
        watch(step(done=done))
        figure = _measure(place, name, wishes)
        figures[name].append(figure)
        watch(step(done=done + 1, figure=figure))
    return make_report(
        place.facts, figures, jobs=wishes.jobs, rounds=wishes.rounds, processes=wishes.processes
    )


def _measure(place: Place, name: str, wishes: Wishes) -> Figure:
    if name == BARE and place.folder is not None:
        synchronous = place.facts.settings["synchronous"]
        return bare_inserts(place.folder / "bare.db", wishes.jobs, synchronous=synchronous, within=WITHIN)
    with place.stage() as stage:
        return _measures(wishes)[name](stage)


def _measures(wishes: Wishes) -> dict[str, Measure]:
    jobs, processes = wishes.jobs, wishes.processes
    return {
        "enqueue": partial(one_by_one, jobs=jobs, within=WITHIN),
        "aenqueue": partial(by_many, jobs=10 * jobs, within=WITHIN),
        "bulk": partial(in_bulk, jobs=20 * jobs, within=WITHIN),
        "drain": partial(drain, jobs=20 * jobs, sync=False, processes=processes),
        "drain-sync": partial(drain, jobs=20 * jobs, sync=True, processes=processes),
        "latency": partial(latency, jobs=max(10, jobs // 10), within=WITHIN),
    }
