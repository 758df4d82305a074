"""Schedules and fan-outs that cannot be meant."""

from datetime import UTC, date, datetime

from shigoto import Context, Shigoto, Tick
from tests.typing.declared import add, aggregate, send

app = Shigoto("memory:")


@app.cron("0 3 * * *", timezone="Asia/Tokyo")  # expect: mypy, pyright
def misspelt() -> None: ...


@app.cron("0 3 * * *", catch_up="some")  # expect: mypy, pyright
def catching_up() -> None: ...


@app.cron(5)  # expect: mypy, pyright
def numbered() -> None: ...


@app.every(datetime.now(UTC))  # expect: mypy, pyright
def momentary() -> None: ...


@app.every("5m")
def often(ctx: Context, tick: Tick) -> None: ...


def calls() -> None:
    often.enqueue()  # expect: mypy, pyright
    often.enqueue("2026-05-06T03:00")  # expect: mypy, pyright
    Tick.at(5)  # expect: mypy, pyright
    Tick.at("2026-05-06T03:00", zone="UTC")  # expect: mypy, pyright


def declared() -> None:
    app.schedule("a", "@daily", call=add)  # expect: mypy, pyright
    app.schedule("a", "@daily", call=lambda: add.call(1, 2))  # expect: mypy, pyright
    app.schedule("a", "@daily", call=lambda tick: add.call("1", 2))  # expect: mypy, pyright
    app.schedule("a", "@daily", call=send.call)  # expect: mypy, pyright
    app.schedule("a", "@daily", call=add.call(1, 2), overlap="never")  # expect: mypy, pyright
    app.schedule("a", "@daily")  # expect: mypy, pyright


async def at_run_time() -> None:
    app.schedules.add("a", lambda tick: add.call(1, 2), cron="@daily")  # expect: mypy, pyright
    app.schedules.add("a", add.call(1), cron="@daily")  # expect: mypy, pyright
    app.schedules.add("a", add.call(1, 2), at=date(2030, 1, 1))  # expect: mypy, pyright
    await app.schedules.aupdate("a", call=send)  # expect: mypy, pyright
    app.schedules.backfill("a", "2026-05-06", "2026-05-07")  # expect: mypy, pyright


def fan_out(ctx: Context) -> None:
    ctx.fan_out(["a"], lambda store: aggregate.call(store, "2026-05-05"))  # expect: mypy, pyright
    ctx.fan_out([1.5], lambda store: send.call("x"))  # expect: mypy, pyright
    ctx.fan_out(["a"], lambda store: store)  # expect: mypy, pyright
