"""Lines for the journal of systemd."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shigoto.observe.log_format import JournalFormatter

LOGS = """
import logging
from shigoto.observe.log import configure_logging

configure_logging(format={format!r})
logging.getLogger("shop").warning("low on ink")
"""


@pytest.mark.parametrize(
    ("level", "mark"),
    [(logging.DEBUG, 7), (logging.INFO, 6), (25, 6), (logging.WARNING, 4), (logging.ERROR, 3), (logging.CRITICAL, 2)],
)  # fmt: skip
def test_the_journal_is_told_the_level_and_not_the_time(level: int, mark: int) -> None:
    """S0-78."""
    record = logging.LogRecord("shop", level, "shop.py", 1, "low on %s", ("ink",), None)

    line = JournalFormatter().format(record)

    assert line.startswith(f"<{mark}>{record.levelname}")
    assert line.endswith("shop low on ink")


def test_every_line_of_a_traceback_has_its_level() -> None:
    try:
        raise ValueError("empty")
    except ValueError as error:
        trace = (type(error), error, error.__traceback__)
    record = logging.LogRecord("shop", logging.ERROR, "shop.py", 1, "broken", (), trace)

    lines = JournalFormatter().format(record).splitlines()

    assert len(lines) > 3
    assert all(line.startswith("<3>") for line in lines)


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize("to_journal", [True, False])
def test_standard_error_is_asked_where_it_leads(tmp_path: Path, format: str, *, to_journal: bool) -> None:
    """S0-78: a service whose output was turned elsewhere writes the time as ever."""
    with (tmp_path / "log").open("w") as log:
        status = os.fstat(log.fileno())
        stream = f"{status.st_dev}:{status.st_ino}" if to_journal else "1:1"
        subprocess.run(
            [sys.executable, "-c", LOGS.format(format=format)],
            stderr=log,
            env={**os.environ, "JOURNAL_STREAM": stream},
            check=True,
            timeout=60,
        )

    line = (tmp_path / "log").read_text()

    assert line.startswith("<4>WARNING") == (to_journal and format == "text")
    assert line.count("low on ink") == 1
