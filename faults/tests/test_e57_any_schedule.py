"""The simulation: thousands of worlds, in each of which chance does its worst, and every promise is kept (E57).

A world that breaks one breaks it again; the message says how to see it.
"""

from pathlib import Path

import pytest

from faults.breaking import Mutant, Patch, Worlds, build
from faults.experiment import Setting
from faults.experiments.e57_any_schedule import EXPERIMENT, PARTS
from faults.simulation.many import live_many
from faults.simulation.plan import plan_of

pytestmark = pytest.mark.timeout(300)

# Worlds that were found guilty, and were not.
MISJUDGED = {
    1_794_803_518: "a worker ended in an outage, before it was asked to hurry; the world took it for alive, and fenced",
    1_794_803_959: "the same, and the outage was over just before it gave up",
    1_794_805_711: "a worker took long to stop, and nobody else was there meanwhile",
    633_238: "a job waited in a queue that an operator had paused",
    4_210_546: "a job was due much later than it seemed, after the clock had been set back",
}
# What two of the judgements are there to see.
SLOW_BEATS = Mutant(
    name="beats are tried ever more seldom in an outage",
    patches=(Patch("worker/keeper.py", "longest=longest_pause(state.lease)", "longest=state.lease * 6"),),
    guard=Worlds("memory", 177, 1),
)
SLOW_LOOKS = Mutant(
    name="nobody is told of what has become due, and everybody polls seldom",
    patches=(
        Patch("worker/maintenance.py", "            self._promoted()\n", "            pass\n"),
        Patch("worker/state.py", "return self.poll * self", "return self.poll * 8 * self"),
    ),
    guard=Worlds("memory", 187, 1),
)


NEVER_CAUGHT_UP = Mutant(
    name="what is due is counted from now, and not from what was decided",
    patches=(
        Patch(
            "schedule/decide.py",
            "overdue(definition, schedule.decided_to, end)\n    if not recent",
            "overdue(definition, max(schedule.decided_to, now - 1_500), end)\n    if not recent",
        ),
    ),
    guard=Worlds("memory", 0, 40),
)


def test_in_every_world_each_job_ends_and_none_is_run_twice_without_a_reason(tmp_path: Path) -> None:
    """S0-68, S1-14: I1-I8, I10, I14, I16, I17 hold whatever befalls a world, and an outage costs no rerun (E57)."""
    outcome = EXPERIMENT.run(Setting(engine="sqlite", folder=tmp_path, seed=0, full=False))

    assert outcome.passed, "\n".join(outcome.wrong)
    assert outcome.n == sum(count for count, *_ in PARTS.values())
    assert outcome.n > 2_000
    worlds = [figures for figures in outcome.figures.values() if isinstance(figures, dict)]
    assert len(worlds) == len(PARTS)
    assert all(figures["workers fenced"] > 0 for figures in worlds)


@pytest.mark.parametrize(("engine", "count"), [("memory", 40), ("sqlite", 6)])
def test_a_world_is_the_same_whenever_it_is_lived(engine: str, count: int) -> None:
    """E57: a seed that failed fails again, in another process, with other hashes, and among other worlds."""
    once = live_many(700, count, "--engine", engine, processes=1, hash_seed="1")
    again = live_many(700, count, "--engine", engine, processes=2, hash_seed="2")

    assert once.traces == again.traces
    assert len(set(once.traces.values())) == count


def test_the_worlds_have_everything_in_them_that_can_go_wrong() -> None:
    """E57: a simulation shows nothing about what never happens in it."""
    plans = [plan_of(seed) for seed in range(300)]
    stints = [stint for plan in plans for career in plan.careers for stint in career]
    orders = [order for plan in plans for orders in plan.orders for order in orders]

    assert {plan.mood for plan in plans} == {"calm", "lossy", "cuts", "outage", "violent"}
    assert {stint.end for stint in stints} == {"stop", "hurry", "cancel", "kill"}
    assert {accident.what for stint in stints for accident in stint.accidents} == {"pause", "cut"}
    assert {act.what for plan in plans for act in plan.interventions} == {"cancel", "force", "retry", "pause"}
    assert {"fail", "snooze", "block", "stubborn", "checkpoint"} <= {
        word for order in orders for word, _ in order.steps
    }
    assert any(seconds == 300 for plan in plans for _, seconds in plan.outages)
    assert {by > 0 for plan in plans for _, by in plan.clock_steps} == {True, False}
    assert {order.task for order in orders} == {"work", "sole"}


@pytest.mark.parametrize("seed", MISJUDGED)
def test_a_world_is_not_blamed_for_what_nobody_has_promised(seed: int) -> None:
    """E57: a process that has ended may be fenced, and where nobody can take a job it waits."""
    tally = live_many(seed, 1, processes=1)

    assert tally.failing == {}, MISJUDGED[seed]


@pytest.mark.parametrize(
    ("mutant", "blame"), [(SLOW_BEATS, "though it lived"), (SLOW_LOOKS, "with room for it (I16)")]
)
def test_but_it_is_for_what_was_promised(mutant: Mutant, blame: str, tmp_path: Path) -> None:
    """E57: a worker that lives is not fenced, and no job waits for longer than the poll where there is room."""
    assert isinstance(mutant.guard, Worlds)
    seed = mutant.guard.first

    broken = live_many(seed, 1, processes=1, source=build(mutant, tmp_path))
    assert blame in broken.failing[seed][0]
    assert live_many(seed, 1, processes=1).failing == {}


def test_a_world_with_a_schedule_is_blamed_for_a_tick_without_a_job(tmp_path: Path) -> None:
    """E57, I8: somebody has asked for each of its ticks."""
    source = build(NEVER_CAUGHT_UP, tmp_path)

    broken = live_many(0, 40, "--size", "ticking", "--until-wrong", processes=1, source=source)

    assert any("is not there" in said for wrong in broken.failing.values() for said in wrong)
