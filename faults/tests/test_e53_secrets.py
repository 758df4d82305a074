"""The experiment on secrets in its short form (E53)."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from faults.experiment import Setting
from faults.experiments import e53_secrets
from faults.tools.canaries import Canaries
from faults.tools.outlets import Said, Scene

pytestmark = pytest.mark.timeout(600)


@pytest.mark.engine("sqlite")
def test_no_canary_comes_out_of_a_file_and_all_that_work_on_it(tmp_path: Path) -> None:
    """E53, S22, S23: addresses, environment, arguments, headers, exceptions; by all signals."""
    outcome = e53_secrets.EXPERIMENT.run(Setting(engine="sqlite", folder=tmp_path, seed=53, full=False))

    assert outcome.passed, repr(outcome)
    assert outcome.figures["canaries"] >= 50
    assert outcome.figures["outputs"] > 100


@pytest.mark.tier("nightly")
@pytest.mark.engine("postgres")
@pytest.mark.newest_postgres
def test_no_canary_comes_out_of_a_database_and_all_that_work_on_it(on_postgres: Setting) -> None:
    """E53, S22, S23."""
    outcome = e53_secrets.EXPERIMENT.run(on_postgres)

    assert outcome.passed, repr(outcome)


def test_an_outlet_that_says_nothing_or_too_much_fails_the_experiment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A silence shows nothing; Sentry may know its own key, and nobody else's."""

    def silent(_: Scene) -> Iterator[Said]:
        yield "mail", ""

    def sentry(_: Scene) -> Iterator[Said]:
        yield "sentry: envelope", "canary-1 canary-2"

    known = Canaries({"environment: Sentry key": "canary-1", "Secret: text": "canary-2"})
    scene: Any = SimpleNamespace(canaries=known)
    monkeypatch.setattr(e53_secrets, "OUTLETS", (silent, sentry))

    assert e53_secrets.judged(scene).wrong == [
        "Nothing was heard: mail",
        "Nothing was heard of silent.",
        "'Secret: text' came out: sentry: envelope",
    ]


def test_a_canary_that_comes_out_is_found() -> None:
    """The look that finds nothing finds what is there, in any form."""
    known = Canaries({"a": "can/ary+1", "b": "o'ther"})

    assert known.found_in("x can%2Fary%2B1 y") == ["a"]
    assert known.found_in("can/ary+1 'o\\'ther'") == ["a"]
    assert known.found_in("o'ther") == ["b"]
    assert known.found_in("nothing") == []
