"""A thousand workers that wait for work at one server."""

import asyncio
from pathlib import Path

import pytest

from bench import http
from shigoto import Shigoto

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(180)]

WAITING = 1_000
MOST_MEGABYTES = 100.0
MOST_PROCESSOR = 0.25  # of one, while nothing happens: it sleeps


def test_a_thousand_long_polls_cost_little_and_are_answered(tmp_path: Path) -> None:
    """S1-22: under 100 MB together, and nobody is asked again and again. When a job comes, one of them gets it."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = Shigoto(url)

    @app.task
    async def noop() -> None: ...

    app.engine.migrate()
    with http.served(url) as (server, port):
        waited = asyncio.run(http.long_polls(server.pid, port, WAITING, 5.0, meanwhile=noop.enqueue))
        counts = app.stats()["default"]

    assert waited.megabytes < MOST_MEGABYTES
    assert waited.processor < 5.0 * MOST_PROCESSOR
    assert (counts.pending, counts.processing) == (0, 1)
    app.close()
