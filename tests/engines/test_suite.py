"""No promise of the suite is forgotten by an engine's test module."""

import re
from pathlib import Path

import pytest

from conformance import suite


@pytest.mark.parametrize(
    ("engine", "left_out"),
    [("memory", {"TestJoin"}), ("postgres", {"TestNoJoin"}), ("sqlite", {"TestNoJoin"})],
)
def test_every_class_of_the_suite_is_run(engine: str, left_out: set[str]) -> None:
    classes = {name for name in vars(suite) if name.startswith("Test")}
    module = (Path(__file__).parent / f"test_{engine}.py").read_text()
    imported = re.findall(r"^ {4}(Test\w+),$", module, re.MULTILINE)
    derived = re.findall(r"^class (Test\w+)\(", module, re.MULTILINE)

    assert classes - {*imported, *derived} == left_out
