"""A token that is revoked while its request waits: what comes then is not for it any more (S19, E55)."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from shigoto import Shigoto
from tests.journeys.yard import eventually
from tests.service.ground import Answer, Key, Served, key, served, work_off
from tests.service.hands import Hand

ASKS, STAYS = key("submit", "read", "work"), key("submit", "read", "work")


def waiting(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when somebody waits by the method of this name."""
    begun, method = threading.Event(), getattr(owner, name)

    def wait(*args: Any, **options: Any) -> Any:
        begun.set()
        return method(*args, **options)

    monkeypatch.setattr(owner, name, wait)
    return begun


class Waiter:
    """One request, asked in a thread."""

    def __init__(self, ask: Callable[[], Answer]) -> None:
        self._answers: list[Answer] = []
        self._thread = threading.Thread(target=lambda: self._answers.append(ask()))
        self._thread.start()

    def answer(self) -> Answer:
        self._thread.join(30)
        [answer] = self._answers
        return answer


def revoke(app: Shigoto, server: Served, token: Key) -> None:
    """And wait until the server knows it."""
    app.engine.run(app.engine.registry.revoke_token(token.token.id))
    eventually(lambda: server.ask("GET", "/jobs", token=token).status == 401, within=10)


def test_a_worker_that_waits_gets_no_job_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Shigoto("memory:")
    with served(app, tokens=[ASKS, STAYS], housekeeping=False) as server:
        hand, other = Hand(server, token=ASKS, lease=300), Hand(server, token=STAYS)
        begun = waiting(server.service.waiters, "wait", monkeypatch)
        claim = Waiter(lambda: hand.ask("POST", "/claim", {"wait": 20}))
        assert begun.wait(10)

        revoke(app, server, ASKS)
        id = app.enqueue_by_name("work", {}, allow_unknown=True).id

        answer = claim.answer()
        assert (answer.status, answer.code) == (401, "AUTH.INVALID")
        eventually(lambda: app.count(state="pending") == 1, within=10)
        [job] = other.claim()
        assert job["id"] == str(id)


def test_who_waits_for_an_end_does_not_hear_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Shigoto("memory:")

    @app.task
    async def work() -> None: ...

    with served(app, tokens=[ASKS, STAYS], housekeeping=False) as server:
        id = work.enqueue().id
        begun = waiting(server.service.feed, "ended", monkeypatch)
        asking = Waiter(lambda: server.ask("GET", f"/jobs/{id}?wait=20", token=ASKS))
        assert begun.wait(10)

        revoke(app, server, ASKS)
        work_off(app)

        answer = asking.answer()
        assert (answer.status, answer.code) == (401, "AUTH.INVALID")


def test_who_waits_for_the_bell_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Shigoto("memory:")
    with served(app, tokens=[ASKS, STAYS], housekeeping=False) as server:
        rung = server.ask("GET", "/doorbell", token=ASKS).json["rung"]
        begun = waiting(server.service.waiters, "rings", monkeypatch)
        asking = Waiter(lambda: server.ask("GET", f"/doorbell?wait=20&seen={rung}", token=ASKS))
        assert begun.wait(10)

        revoke(app, server, ASKS)
        app.enqueue_by_name("work", {}, allow_unknown=True)

        assert asking.answer().status == 401
