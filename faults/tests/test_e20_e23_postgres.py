"""A server that is lost for good, and everybody at the same jobs at once: E20 and E23 in their short forms; and that
their judges, and those of E24 to E27, can see what they are there to see.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from faults.evidence.checker import Evidence
from faults.evidence.records import Record
from faults.experiment import Setting
from faults.experiments import (
    e20_failover,
    e23_deadlocks,
    e24_held_snapshot,
    e25_plans,
    e26_upgrade,
    e27_server_disk_full,
)
from faults.stage import Stage
from faults.tools.costs import Cost
from faults.tools.pairs import meet
from shigoto.engine.op import Op
from shigoto.engine.postgres import PostgresEngine, errors
from shigoto.engine.postgres.schema import shipped
from shigoto.engine.sql.commands import SqlText, Steps

pytestmark = [
    pytest.mark.engine("postgres"),
    pytest.mark.newest_postgres,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc"),
]


def test_e20_what_a_standby_has_confirmed_survives_the_loss_of_the_server(on_postgres: Setting) -> None:
    """E20, I1-I6, I9: synchronous replication; workers find the new server by themselves within five seconds."""
    outcome = e20_failover.EXPERIMENT.run(on_postgres)

    assert outcome.passed, (outcome.wrong, outcome.zeros, outcome.figures)
    assert outcome.n >= 300
    assert outcome.recovery
    assert max(outcome.recovery) <= e20_failover.PICKED_UP_WITHIN


def test_e23_nobody_hears_of_a_deadlock_and_every_job_has_one_place(on_postgres: Setting) -> None:
    """E23, I3, I4: each pair that is tried really meets, and whatever the server throws out is begun again."""
    outcome = e23_deadlocks.EXPERIMENT.run(on_postgres)

    assert outcome.passed, (outcome.wrong, outcome.zeros, outcome.figures)
    assert outcome.figures["of them waited"] > 0


def test_e23_a_tick_meets_every_other_operation_and_nobody_hears_of_it(on_postgres: Setting) -> None:
    """E23, I8, S4-20: two sessions, of which the second begins in the midst of the first, and waits if it has to."""
    with Stage(on_postgres, server_settings=e23_deadlocks.SERVER) as stage:
        pairs = e23_deadlocks.Pairs(stage)
        pairs.run(e23_deadlocks.beside("tick"), 120.0)
        counted = e23_deadlocks.miscounted(stage)

    assert (pairs.wrong, counted) == ([], [])
    assert pairs.met == {(first, second) for first, second, _ in e23_deadlocks.beside("tick")}
    assert pairs.waited > 0


class Quarrel:
    """Two sessions that want the same two rows."""

    def __init__(self, stage: Stage, engines: list[PostgresEngine]) -> None:
        self.stage = stage
        self.engines = engines[0], engines[1]

    def waits(self) -> bool:
        with self.stage.server.connect() as connection:
            row = connection.execute(e23_deadlocks.WAITS, (e23_deadlocks.SECOND,)).fetchone()
            return row == (True,)

    def locking(self, *names: str) -> Op[None]:
        def steps() -> Steps[None]:
            for name in names:
                yield SqlText("SELECT 1 FROM shigoto.meta WHERE name = $1::text FOR UPDATE", (name,))

        return Op(start=steps)


@pytest.fixture
def quarrel(on_postgres: Setting) -> Iterator[Quarrel]:
    with Stage(on_postgres, server_settings=e23_deadlocks.SERVER) as stage, ExitStack() as stack:
        yield Quarrel(
            stage,
            [
                stack.enter_context(
                    closing(PostgresEngine(f"{stage.url}?application_name={name}&listen=off"))
                )
                for name in ("first", e23_deadlocks.SECOND)
            ],
        )


def test_two_sessions_meet_in_a_circle_and_only_the_driver_knows(
    quarrel: Quarrel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = quarrel.locking("tally", "pruned_to"), quarrel.locking("pruned_to", "tally")

    case = meet(quarrel.engines, ops, 1, quarrel.waits)

    assert (case.reached, case.waited, case.errors) == (True, True, ())
    assert e23_deadlocks.deadlocks(quarrel.stage) == 1

    monkeypatch.setattr(errors, "RESTARTS", 0)
    [error] = meet(quarrel.engines, ops, 1, quarrel.waits).errors
    assert "deadlock detected" in error


def test_two_sessions_that_do_not_meet_are_seen_not_to(quarrel: Quarrel) -> None:
    past = meet(quarrel.engines, (quarrel.locking("tally"), quarrel.locking("tally")), 2, quarrel.waits)
    apart = meet(quarrel.engines, (quarrel.locking("tally"), quarrel.locking("pruned_to")), 1, quarrel.waits)

    assert (past.reached, past.waited, past.errors) == (False, False, ())
    assert (apart.reached, apart.waited, apart.errors) == (True, False, ())


def test_e20_tells_what_an_asynchronous_standby_may_have_lost_from_what_it_may_not() -> None:
    killed, lagging = 100.0, e20_failover.Way("lagging", waits=False, deaf_for=1.0)
    records = [
        Record(what=what, at=at, pid=1, job=f"acknowledged at {at}")
        for at in (90.0, 99.5)
        for what in ("try", "ok")
    ]
    old = "acknowledged at 90.0"

    fresh = e20_failover.judged(Evidence(records=records, states={old: "completed"}), killed, lagging)
    stale = e20_failover.judged(Evidence(records=records), killed, lagging)

    assert fresh.wrong == []
    assert fresh.figures["acknowledged and gone"] == 1
    assert ["10.00 s before" in text for text in stale.wrong] == [True]


def test_e24_sees_claims_that_are_too_slow_or_stay_slow() -> None:
    def looks(*p99: float) -> list[e24_held_snapshot.Look]:
        return [e24_held_snapshot.Look(until=0.0, count=9, p50=1.0, p99=each) for each in p99]

    judged, usual = e24_held_snapshot.judged, looks(2.0, 30.0, 2.0)

    assert judged(usual, looks(3, 5, 9, 9.9), looks(3.9), 7.0, least=0.0) == []
    assert "under a held snapshot" in judged(usual, looks(3, 5, 9, 10.1), looks(2), 7.0, least=0.0)[0]
    assert "after it has ended" in judged(usual, looks(3), looks(9, 4.1), 120.0, least=0.0)[0]
    assert judged(usual, [], looks(2), 1.0, least=0.0) == ["the log has no claims"]


def test_e25_sees_rows_and_pages_that_grow() -> None:
    def cost(ready: int, done: int = 0, pages: int = 50) -> Cost:
        return Cost(rows={"ready": ready, "done": done}, pages=pages, milliseconds=1.0)

    judged = e25_plans.judged

    assert judged("claim of 10", cost(20), cost(10)) == []
    assert len(judged("claim of 10", cost(21), cost(10))) == 1
    assert len(judged("claim of 10", cost(10, done=1_000), cost(10))) == 1
    assert len(judged("beat", cost(10, pages=1_000), cost(10))) == 1


def test_e26_and_e27_take_no_other_words_for_a_clear_reason() -> None:
    known = len(shipped())
    clear = f"jobs has schema version {known + 2} (next), but … Upgrade shigoto here, or …"
    assert e26_upgrade.is_clear(clear)
    assert not e26_upgrade.is_clear("jobs lacks what this release needs. Run `shigoto migrate`.")

    def judged(*texts: str) -> list[str]:
        client = e27_server_disk_full.Client.__new__(e27_server_disk_full.Client)
        client.refused = dict(enumerate(texts))  # type: ignore[arg-type]
        return e27_server_disk_full.judged(client, Evidence(records=[]))

    full, down = f"could not extend file: {e27_server_disk_full.REASON}", "Connection refused"
    assert judged(full, down) == []
    assert judged(down) == ["nobody was told that there is no space left"]
    assert judged(full, "something is wrong")[0].startswith("an error does not say what is wrong")


def test_e27_knows_a_refused_job_that_is_there_after_all() -> None:
    client = e27_server_disk_full.Client.__new__(e27_server_disk_full.Client)
    client.refused = {"a": e27_server_disk_full.REASON}
    refused = Record(what="err", at=time.monotonic(), pid=1, job="a")

    assert e27_server_disk_full.judged(client, Evidence(records=[refused])) == []
    wrong = e27_server_disk_full.judged(client, Evidence(records=[refused], states={"a": "completed"}))
    assert wrong == ["1 jobs were refused and are there"]
