"""The jobs of the stores: which there are, when they run, and what they do.

What is done for each store is enqueued by a scheduled task, which does nothing else: one job for each, named after the
store. Whatever changes a store's rows is done by that job, and is part of one commit with its completion. Two
scheduled tasks change rows themselves, which belong to no store. What a job is about, such as a day or a limit, is
made from the tick, never from the clock, so that a retry, or a run that is late, does the same.
"""

import os
from collections.abc import AsyncIterator
from datetime import date, datetime, timedelta
from typing import ParamSpec, TypeVar

from shigoto import Context, Shigoto, Task, Tick
from stores.database import open_database, store_ids

app = Shigoto(os.environ.get("SHIGOTO_URL") or "sqlite:///stores.db")

P = ParamSpec("P")
R = TypeVar("R")

TOKYO = "Asia/Tokyo"
KEEP_CUSTOMERS = timedelta(days=90)
KEEP_NOTES = timedelta(days=7)


@app.lifespan
async def tables(app: Shigoto) -> AsyncIterator[None]:
    """The tables are there before any job runs."""
    open_database(app).close()
    yield


@app.cron("*/5 * * * *", name="expire-tentative-reservations", retries=2, overlap="skip")
def expire_reservations(ctx: Context, tick: Tick) -> None:
    """Give back what was held for too long, in every store."""
    ctx.fan_out(
        store_ids(app),
        lambda store: keyed(expire_for_store, f"expire_tentative:{store}").call(store, tick.at),
    )


@app.cron("0 3 * * *", tz=TOKYO, name="aggregate-daily-sales", retries=2)
def aggregate_sales(ctx: Context, tick: Tick) -> None:
    """Add up the sales of the day before, in every store."""
    day = tick.local_date - timedelta(days=1)
    ctx.fan_out(
        store_ids(app),
        lambda store: keyed(aggregate_for_store, f"aggregate_daily_sales:{store}:{day}").call(store, day),
    )


@app.cron("0 2 * * *", tz=TOKYO, name="cleanup-deleted-customers", retries=2)
def cleanup_customers(ctx: Context, tick: Tick) -> None:
    """Remove customers that were deleted long ago, in every store."""
    limit = tick.at - KEEP_CUSTOMERS
    ctx.fan_out(
        store_ids(app),
        lambda store: keyed(cleanup_for_store, f"cleanup_customers:{store}:{limit.isoformat()}").call(
            store, limit
        ),
    )


@app.cron("0 0 * * *", tz=TOKYO, name="purge-deleted-customer-notes", retries=2)
def purge_notes(ctx: Context, tick: Tick) -> None:
    """Remove notes that were deleted a while ago, in every store."""
    limit = tick.at - KEEP_NOTES
    ctx.fan_out(
        store_ids(app),
        lambda store: keyed(purge_for_store, f"purge_customer_notes:{store}:{limit.isoformat()}").call(
            store, limit
        ),
    )


@app.cron("0 1 * * *", tz=TOKYO, name="cleanup-expired-operator-sessions", retries=2)
def cleanup_sessions(ctx: Context, tick: Tick) -> None:
    """Remove sessions that are over; they belong to no store."""
    change(ctx, "DELETE FROM session WHERE expires_at < ?", tick.at.isoformat())


@app.cron("0 1 * * *", tz=TOKYO, name="cleanup-expired-operator-invitations", retries=2)
def cleanup_invitations(ctx: Context, tick: Tick) -> None:
    """Remove invitations that nobody has followed."""
    change(ctx, "DELETE FROM invitation WHERE expires_at < ?", tick.at.isoformat())


@app.task(name="expire-tentative-for-store", retries=9)
def expire_for_store(ctx: Context, store: str, held_before: datetime) -> None:
    """Give back what was held until before an instant, in one store."""
    statement = (
        "UPDATE reservation SET state = 'expired' WHERE store = ? AND state = 'tentative' AND held_until < ?"
    )
    change(ctx, statement, store, held_before.isoformat())


@app.task(name="aggregate-daily-sales-for-store", retries=24)
def aggregate_for_store(ctx: Context, store: str, day: date) -> None:
    """Add up the sales of one day, in one store; doing it again gives the same."""
    statement = (
        "REPLACE INTO daily_sales SELECT ?1, ?2, total(amount) FROM sale WHERE store = ?1 AND day = ?2"
    )
    change(ctx, statement, store, day.isoformat())


@app.task(name="cleanup-deleted-customers-for-store", retries=4)
def cleanup_for_store(ctx: Context, store: str, deleted_before: datetime) -> None:
    """Remove customers that were deleted before an instant, in one store."""
    change(ctx, "DELETE FROM customer WHERE store = ? AND deleted_at < ?", store, deleted_before.isoformat())


@app.task(name="purge-deleted-customer-notes-for-store", retries=4)
def purge_for_store(ctx: Context, store: str, deleted_before: datetime) -> None:
    """Remove notes that were deleted before an instant, in one store."""
    change(ctx, "DELETE FROM note WHERE store = ? AND deleted_at < ?", store, deleted_before.isoformat())


@app.task(name="send-operator-invitation-email", queue="mail")
def send_invitation(ctx: Context, store: str, invitation_id: str) -> str:
    """Invite somebody to a store. The mail server knows by the key whether it has sent this mail before."""
    ctx.log(f"Mail for invitation {invitation_id} of store {store}, key {ctx.idempotency_key}")
    return invitation_id


@app.task
def ping() -> str:
    """Say that somebody is there."""
    return "pong"


def keyed(task: Task[P, R], key: str) -> Task[P, R]:
    """The task, once while it waits: a second run of a scheduler adds nothing."""
    return task.using(key=key, key_mode="preserve_run_at")


def change(ctx: Context, statement: str, *parameters: object) -> None:
    """One statement and the completion of the job, in one commit."""
    with ctx.transaction() as tx:
        tx.execute(statement, parameters)
