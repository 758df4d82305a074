"""The example `stores`: cron in code, and one job for each store."""

import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shigoto import State, Tick
from shigoto.schedule.preview import upcoming
from shigoto.testing import Jobs
from tests.unit.commands import Command, command

EXAMPLES = Path(__file__).parents[2] / "examples"
TOKYO = "Asia/Tokyo"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHIGOTO_URL", raising=False)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from stores import jobs

    yield jobs
    jobs.app.close()
    for name in [name for name in sys.modules if name.split(".")[0] == "stores"]:
        del sys.modules[name]


@pytest.fixture
def jobs(shop: Any, tmp_path: Path) -> Iterator[Jobs]:
    with shop.app.test(store=tmp_path / "test.db", ticks=False) as jobs:
        with closing(shop.open_database(shop.app)) as connection, connection:
            connection.executemany("INSERT INTO store VALUES (?)", [("b",), ("c",), ("a",)])
            connection.executemany(
                "INSERT INTO sale VALUES (?, ?, ?)", [("a", "2026-05-05", 7), ("a", "2026-05-06", 1)]
            )
        yield jobs


def night() -> Tick:
    tick: Tick = Tick.at("2026-05-06T03:00", tz=TOKYO)
    return tick


def test_one_run_of_a_scheduler_enqueues_one_job_for_each_store_in_a_stable_order(
    shop: Any, jobs: Jobs
) -> None:
    """S3-6, S3-57 = GWT-5, S3-72: three stores, exactly three jobs, by the id of the store; nothing else."""
    shop.aggregate_sales.enqueue(night())

    jobs.run_all()

    [parent, *children] = sorted(shop.app.find(state="all"), key=lambda job: job.number)
    assert parent.task == "aggregate-daily-sales"
    assert [(job.task, job.tenant) for job in children] == [
        ("aggregate-daily-sales-for-store", s) for s in "abc"
    ]
    with closing(shop.open_database(shop.app)) as connection:
        assert connection.execute("SELECT * FROM daily_sales").fetchall() == [
            ("a", "2026-05-05", 7),
            ("b", "2026-05-05", 0),
            ("c", "2026-05-05", 0),
        ]


def test_a_second_run_of_a_scheduler_adds_nothing(shop: Any, jobs: Jobs) -> None:
    """S3-32 to S3-36, S3-58 = GWT-6: with the mode preserve_run_at."""
    for _ in range(2):
        shop.aggregate_sales(night())  # here and now, so that the children still wait

    assert sorted(job.tenant for job in shop.app.find(state="pending")) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("aggregate_sales", "daily_sales"),
        ("expire_reservations", "reservation"),
        ("cleanup_customers", "customer"),
        ("purge_notes", "note"),
    ],
)
def test_what_enqueues_for_each_store_changes_nothing_itself(
    shop: Any, jobs: Jobs, name: str, table: str
) -> None:
    """S3-9: there is something to change in the first store, and only the job for that store does."""
    old = "2020-01-01T00:00:00+00:00"
    with closing(shop.open_database(shop.app)) as connection, connection:
        connection.execute("INSERT INTO reservation VALUES ('a', ?, 'tentative')", (old,))
        connection.execute("INSERT INTO customer VALUES ('a', 'Ada', ?)", (old,))
        connection.execute("INSERT INTO note VALUES ('a', 'Hello', ?)", (old,))
        before = set(connection.iterdump())

    def changed() -> set[str]:
        with closing(shop.open_database(shop.app)) as connection:
            lines = before ^ set(connection.iterdump())
        tables = {line.split('"')[1] for line in lines if line.startswith("INSERT")}
        return {table for table in tables if not table.startswith("shigoto_")}

    getattr(shop, name)(night())

    assert (changed(), len(shop.app.find(state="pending"))) == (set(), 3)
    jobs.run_all(raise_errors=True)
    assert changed() == {table}


def test_a_scheduler_that_runs_again_later_means_the_same_jobs(shop: Any, jobs: Jobs) -> None:
    """C20: the limit that stands in their keys is that of the tick; by the clock there would be six."""
    for _ in range(2):
        shop.cleanup_customers(night())
        jobs.advance(hours=1)

    assert sorted(job.tenant for job in shop.app.find(state="pending")) == ["a", "b", "c"]


def test_the_limit_of_a_clean_up_is_that_of_the_tick(shop: Any, jobs: Jobs) -> None:
    """S3-37, S3-38: one instant for all stores, made from the tick; a scheduler that runs a day late has the same."""
    tick = Tick.at("2026-05-06T02:00", tz=TOKYO)
    shop.cleanup_customers.enqueue(tick)
    jobs.advance(days=1)
    jobs.run_all()

    payloads = {job.payload for job in shop.app.find(state="all", task="cleanup-deleted-customers-for-store")}
    limit = tick.at - timedelta(days=90)
    assert len(payloads) == 3
    assert all(limit.isoformat().replace("+00:00", "Z") in payload for payload in payloads)


def test_what_was_held_for_too_long_is_judged_by_the_tick(shop: Any, jobs: Jobs) -> None:
    """C20: a run that is late, or retried, gives back what the tick says, and not what came due since."""
    tick = night()
    held = [(tick.at + timedelta(minutes=minutes)).isoformat() for minutes in (-1, 1)]
    with closing(shop.open_database(shop.app)) as connection, connection:
        connection.executemany(
            "INSERT INTO reservation VALUES ('a', ?, 'tentative')", [(until,) for until in held]
        )
    shop.expire_reservations.enqueue(tick)
    jobs.run_all(raise_errors=True)  # long after the tick

    with closing(shop.open_database(shop.app)) as connection:
        found = connection.execute("SELECT held_until, state FROM reservation").fetchall()
    assert dict(found) == dict(zip(held, ("expired", "tentative"), strict=True))


def test_cron_is_declared_in_code(shop: Any) -> None:
    """S3-39, S3-40: when each is due, by UTC, and how often it is tried."""
    after = int(datetime(2026, 5, 6, tzinfo=UTC).timestamp() * 1_000)

    def due(name: str) -> list[str]:
        ticks = upcoming(shop.app.declared[name].definition, after, None, 2)
        return [f"{at.astimezone(UTC):%H:%M}" for at in ticks]

    assert {name: due(name) for name in shop.app.declared} == {
        "expire-tentative-reservations": ["00:05", "00:10"],
        "aggregate-daily-sales": ["18:00", "18:00"],
        "cleanup-deleted-customers": ["17:00", "17:00"],
        "cleanup-expired-operator-sessions": ["16:00", "16:00"],
        "cleanup-expired-operator-invitations": ["16:00", "16:00"],
        "purge-deleted-customer-notes": ["15:00", "15:00"],
    }
    attempts = {name: task.options.retry.retries + 1 for name, task in shop.app.tasks.items()}
    assert {attempts[name] for name in shop.app.declared} == {3}
    assert [attempts[f"{name}-for-store"] for name in ("expire-tentative", "aggregate-daily-sales")] == [
        10,
        25,
    ]
    assert [
        attempts[f"{name}-for-store"]
        for name in ("cleanup-deleted-customers", "purge-deleted-customer-notes")
    ] == [
        5,
        5,
    ]


def test_the_catalogue_has_twelve_tasks(shop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """S3-70: six run by a schedule, four for a store, one on demand, and ping."""
    shigoto: Command = command(capsys)

    told = shigoto("--app", "stores.jobs", "tasks", "--json").json

    assert [each["kind"] for each in told] == ["scheduled"] * 6 + ["on demand"] * 6
    assert [each["schedules"][0]["when"] for each in told[:2]] == ["*/5 * * * *", "0 3 * * *"]


def test_everything_runs(shop: Any, jobs: Jobs) -> None:
    for name in shop.app.declared:
        shop.app.resolve(name).enqueue(night())
    shop.send_invitation.enqueue("a", "i-1")
    pong = shop.ping.enqueue()

    jobs.run_all()

    assert pong.result() == "pong"
    states = {job.state for job in shop.app.find(state="all", limit=1_000)}
    assert states == {State.COMPLETED}
