"""Experiments on PostgreSQL in their short forms, on a server of their own; and what can be done to that."""

import sys

import psycopg
import pytest

from faults.evidence.records import read
from faults.experiment import Experiment, Outcome, Setting
from faults.experiments import e01_worker_tree_dies, e03_zombie_returns, e09_poison
from faults.stage import Stage
from faults.tools.proxy import Proxy, Refuse
from faults.tools.server_clock import ServerClock
from shigoto import StoreUnavailable

pytestmark = [
    pytest.mark.engine("postgres"),
    pytest.mark.newest_postgres,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc"),
]


def short_form(experiment: Experiment, setting: Setting) -> Outcome:
    outcome = experiment.run(setting)
    print(outcome)
    assert outcome.passed, (outcome.wrong, outcome.zeros, outcome.figures)
    return outcome


def test_e01_killed_workers_and_producers_cost_no_job_and_no_unlicensed_run(on_postgres: Setting) -> None:
    """E01, I1-I6, I9, S1-7, S1-13, S1-14: what was acknowledged runs and ends, although whole workers are killed."""
    outcome = short_form(e01_worker_tree_dies.EXPERIMENT, on_postgres)

    assert outcome.figures["workers killed"] >= 3
    assert outcome.figures["producers killed"] > 0
    assert outcome.n >= 300
    assert outcome.recovery, "something was cut short, and ran again"


def test_e03_a_worker_that_returns_after_its_lease_settles_nothing_and_ends(on_postgres: Setting) -> None:
    """E03, I3, I4, I6, S1-13, S1-14: others have its jobs by then; and a runner that is stopped is killed in time."""
    outcome = short_form(e03_zombie_returns.EXPERIMENT, on_postgres)

    assert outcome.figures["fenced"] == 1


def test_e09_poison_is_put_away_and_no_bystander_ever_is(on_postgres: Setting) -> None:
    """E09, I13, S1-26: whatever way a job kills its process, it takes one crowd with it, and then only itself."""
    outcome = short_form(e09_poison.EXPERIMENT, on_postgres)

    assert outcome.figures["poison"] >= 12
    assert outcome.figures["bystanders quarantined"] == 0


def test_a_server_comes_back_at_its_address_whatever_was_done_to_it_and_the_ledger_has_it(
    on_postgres: Setting,
) -> None:
    with Stage(on_postgres) as stage:
        server, port = stage.server, stage.server.port
        job = stage.app.tasks["asynchronous"].enqueue(milliseconds=0)
        for how in ("fast", "immediate", "kill"):
            server.restart(how)
            assert server.is_up()
        with server.connect() as connection:
            postmaster, backend = server.pid, connection.info.backend_pid
            server.kill_backend(backend)
        assert stage.wait_until(server.is_up, seconds=30, what="it did not recover")
        assert (server.port, server.pid) == (port, postmaster)
        assert job.status() == "pending", "nothing was lost"
        [mine] = server.backends()
        server.terminate(mine)
        assert stage.wait_until(lambda: not server.backends(), seconds=10, what="it is still connected")
        server.stop()
        assert not server.running
        assert not stage.at_rest(), "nobody can tell"
        server.start()
        assert stage.evidence().states == {str(job.id): "pending"}

    done = [record.outcome for record in read(stage.ledger) if record.deed == "server"]
    assert done == ["fast", "immediate", "kill", "kill backend", "terminate", "fast"]


def test_workers_and_producers_know_no_more_than_they_need(on_postgres: Setting) -> None:
    with Stage(on_postgres) as stage, psycopg.connect(stage.url) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT count(*) FROM audit.change")
        connection.rollback()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("CREATE TABLE shigoto.mine ()")


def test_a_way_to_the_store_can_be_cut_and_another_one_stays(on_postgres: Setting) -> None:
    with Stage(on_postgres) as stage:
        proxy = stage.between(Proxy(stage.server.port))
        through = stage.database.url_at(proxy.port)
        assert stage.producer(3, url=through).wait(60) == 0
        assert proxy.accepted > 0
        proxy.mode = Refuse()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(through)
        assert len(list(stage.jobs())) == 3

    assert [record.what for record in read(stage.ledger)].count("ok") == 3


def test_the_clock_of_a_server_steps_for_the_store_alone(on_postgres: Setting) -> None:
    with Stage(on_postgres) as stage:
        clock = ServerClock(stage.server.url_of(stage.database.name))
        stage.app.tasks["asynchronous"].enqueue(milliseconds=0)
        clock.step(3_600)
        stage.app.tasks["asynchronous"].enqueue(milliseconds=0)
        second, first = stage.jobs()
        apart = (second.created_at - first.created_at).total_seconds()

    assert apart == pytest.approx(3_600, abs=60)


def test_a_stage_has_what_its_engine_has(on_postgres: Setting) -> None:
    with Stage(on_postgres) as stage:
        with pytest.raises(TypeError, match="engine of this stage is postgres"):
            print(stage.store)
        stage.server.stop()
        with pytest.raises(StoreUnavailable):
            print(stage.server.pid)
