"""Builds that are broken on purpose: each break is noticed by its guard, which finds nothing wrong otherwise (E58)."""

from pathlib import Path

import pytest

from faults.experiments.e57_any_schedule import PARTS
from faults.experiments.e58_mutants import shown, widest
from faults.mutants import MUTANTS, SOUND, Guard, Mutant, Patch, Run, Worlds, build, complaints

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(300)]

GUARDS = widest([mutant.guard for mutant in MUTANTS])


def shown_elsewhere(guard: Guard) -> bool:
    """Experiments have tests of their own, and that of E57 lives through the first worlds."""
    if isinstance(guard, Worlds):
        return guard.first == 0 and guard.count <= PARTS[guard.engine, "small"][0]
    return isinstance(guard, Run)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "_"))
def test_a_broken_build_is_noticed(mutant: Mutant, tmp_path: Path) -> None:
    """E58."""
    source = build(mutant, tmp_path)

    said = complaints(mutant.guard, source, tmp_path)

    assert said, f"{shown(mutant.guard)} does not notice that {mutant.name}"


@pytest.mark.parametrize("guard", [guard for guard in GUARDS if not shown_elsewhere(guard)], ids=shown)
def test_a_sound_build_passes_the_same_guard(guard: Guard, tmp_path: Path) -> None:
    """E58."""
    assert complaints(guard, SOUND, tmp_path) == []


def test_a_patch_that_fits_nowhere_is_an_error(tmp_path: Path) -> None:
    """E58: what a mutant would break may have been rewritten; then it proves nothing until it is renewed."""
    mutant = Mutant(
        name="nothing", patches=(Patch("model/states.py", "no such text", ""),), guard=MUTANTS[0].guard
    )

    with pytest.raises(ValueError, match="renew the patch"):
        build(mutant, tmp_path)
