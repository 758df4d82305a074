"""No promise of the suite is forgotten by an engine's test module."""

from pathlib import Path

import pytest

from shigoto.testing.conformance import suite


@pytest.mark.parametrize(
    ("engine", "left_out"),
    [("memory", {"TestJoin"}), ("postgres", {"TestNoJoin"}), ("sqlite", {"TestNoJoin"})],
)
def test_every_class_of_the_suite_is_run(engine: str, left_out: set[str]) -> None:
    classes = {name for name in vars(suite) if name.startswith("Test")}
    lines = (Path(__file__).parent / f"test_{engine}.py").read_text().splitlines()

    assert classes - {line.strip().rstrip(",") for line in lines} == left_out
