"""Builds that are broken on purpose: each break is noticed by its guard, which finds nothing wrong otherwise (E58)."""

from pathlib import Path
from subprocess import CompletedProcess

import pytest
from msgspec import json

from faults import breaking
from faults.breaking import SOUND, Guard, Mutant, Patch, Run, Worlds, build, complaints
from faults.experiment import Outcome
from faults.experiments.e57_any_schedule import PARTS
from faults.experiments.e58_mutants import guards, shown, widest
from faults.mutants import MUTANTS

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(300)]

GUARDS = widest([mutant.guard for mutant in MUTANTS])


def shown_elsewhere(guard: Guard) -> bool:
    """Experiments have tests of their own, that of E57 lives through the first worlds, and tests are in this run."""
    if isinstance(guard, Worlds):
        return guard.first == 0 and guard.count <= PARTS[guard.engine, "small"][0]
    return isinstance(guard, Run | breaking.Test)


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


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "_"))
def test_each_has_an_experiment_or_says_why_not(mutant: Mutant) -> None:
    """E58: the worlds of the simulation are an experiment as well, E57."""
    experiments = [guard for guard in guards(mutant, full=True) if isinstance(guard, Run | Worlds)]

    assert bool(experiments) is not bool(mutant.alone)
    assert not isinstance(mutant.run, Run) or all(mutant.run.sees)


def answer(monkeypatch: pytest.MonkeyPatch, code: int, *outcomes: Outcome) -> None:
    """Let experiments come to this, one after the other, instead of doing anything."""
    answers = iter(outcomes)

    def python(words: list[str], source: Path, folder: Path) -> "CompletedProcess[str]":
        said = json.encode(next(answers)).decode() if not code else ""
        return CompletedProcess(words, code, stdout=said, stderr="Traceback")

    monkeypatch.setattr(breaking, "_python", python)


def test_an_experiment_that_fails_for_another_reason_has_not_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E58: what is broken must be seen, not stumbled over."""
    guard = Run("E03", ("bad_settles", "fenced twice"), tries=2)
    late = Outcome(n=1, wrong=["it came late"], lost=1)
    answer(monkeypatch, 0, late, late)
    assert complaints(guard, SOUND, tmp_path / "a") == []

    answer(monkeypatch, 0, late, Outcome(n=1, bad_settles=2, wrong=["it came late", "it was fenced twice"]))
    assert complaints(guard, SOUND, tmp_path / "b") == ["bad_settles: 2", "it was fenced twice"]


@pytest.mark.parametrize(("code", "skipped"), [(1, ""), (0, "no strace")])
def test_an_experiment_that_cannot_be_done_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, skipped: str
) -> None:
    """E58: nor is that it has been noticed."""
    answer(monkeypatch, code, Outcome(skipped=skipped))

    with pytest.raises(RuntimeError):
        complaints(Run("E03", ("lost",)), SOUND, tmp_path)
