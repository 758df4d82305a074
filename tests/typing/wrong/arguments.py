"""Missing, wrong and extra arguments, on every way to call a task."""

from uuid import uuid4

from tests.typing.declared import add, aggregate, app, log_in, resize, send


def plain() -> None:
    add.enqueue(1)  # expect: mypy, pyright
    add.enqueue("1", 2)  # expect: mypy, pyright
    add.enqueue(1, 2, 3)  # expect: mypy, pyright
    send.enqueue()  # expect: mypy, pyright
    send.enqueue(1)  # expect: mypy, pyright
    send.enqueue("x", bcc="y")  # expect: mypy, pyright
    resize.enqueue("a")  # expect: mypy, pyright
    resize.enqueue("a", width="1")  # expect: mypy, pyright
    resize.enqueue(None, "a", width=1)  # expect: mypy, pyright
    aggregate.enqueue(target_date="2026-05-05")  # expect: mypy, pyright
    aggregate.enqueue("no uuid", "2026-05-05")  # expect: mypy, pyright
    aggregate.enqueue(uuid4(), "2026-05-05", 1)  # expect: mypy, pyright


def secrets() -> None:
    log_in.enqueue("ada", 7)  # expect: mypy, pyright
    log_in.enqueue("ada", "x", code="7")  # expect: mypy, pyright
    log_in.enqueue("ada")  # expect: mypy, pyright
    log_in.using(encrypt="yes").enqueue("ada", "x")  # expect: mypy, pyright


async def awaited() -> None:
    await add.aenqueue(1)  # expect: mypy, pyright
    await add.aenqueue("1", 2)  # expect: mypy, pyright
    await add.aenqueue(1, 2, 3)  # expect: mypy, pyright
    await send.aenqueue()  # expect: mypy, pyright
    await send.aenqueue(1)  # expect: mypy, pyright
    await send.aenqueue("x", bcc="y")  # expect: mypy, pyright
    await resize.aenqueue("a")  # expect: mypy, pyright
    await resize.aenqueue("a", width="1")  # expect: mypy, pyright
    await resize.aenqueue(None, "a", width=1)  # expect: mypy, pyright
    await aggregate.aenqueue(target_date="2026-05-05")  # expect: mypy, pyright
    await aggregate.aenqueue("no uuid", "2026-05-05")  # expect: mypy, pyright
    await aggregate.aenqueue(uuid4(), "2026-05-05", 1)  # expect: mypy, pyright


def using() -> None:
    add.using(delay=1).enqueue(1)  # expect: mypy, pyright
    add.using(delay=1).enqueue("1", 2)  # expect: mypy, pyright
    add.using(delay=1).enqueue(1, 2, 3)  # expect: mypy, pyright
    send.using(delay=1).enqueue()  # expect: mypy, pyright
    send.using(delay=1).enqueue(1)  # expect: mypy, pyright
    send.using(delay=1).enqueue("x", bcc="y")  # expect: mypy, pyright
    resize.using(delay=1).enqueue("a")  # expect: mypy, pyright
    resize.using(delay=1).enqueue("a", width="1")  # expect: mypy, pyright
    resize.using(delay=1).enqueue(None, "a", width=1)  # expect: mypy, pyright
    aggregate.using(delay=1).enqueue(target_date="2026-05-05")  # expect: mypy, pyright
    aggregate.using(delay=1).enqueue("no uuid", "2026-05-05")  # expect: mypy, pyright
    aggregate.using(delay=1).enqueue(uuid4(), "2026-05-05", 1)  # expect: mypy, pyright


def call() -> None:
    add.call(1)  # expect: mypy, pyright
    add.call("1", 2)  # expect: mypy, pyright
    add.call(1, 2, 3)  # expect: mypy, pyright
    send.call()  # expect: mypy, pyright
    send.call(1)  # expect: mypy, pyright
    send.call("x", bcc="y")  # expect: mypy, pyright
    resize.call("a")  # expect: mypy, pyright
    resize.call("a", width="1")  # expect: mypy, pyright
    resize.call(None, "a", width=1)  # expect: mypy, pyright
    aggregate.call(target_date="2026-05-05")  # expect: mypy, pyright
    aggregate.call("no uuid", "2026-05-05")  # expect: mypy, pyright
    aggregate.call(uuid4(), "2026-05-05", 1)  # expect: mypy, pyright


def bulk() -> None:
    app.enqueue_many([add.call(1)])  # expect: mypy, pyright
    app.enqueue_many([add.call("1", 2)])  # expect: mypy, pyright
    app.enqueue_many([add.call(1, 2, 3)])  # expect: mypy, pyright
    app.enqueue_many([send.call()])  # expect: mypy, pyright
    app.enqueue_many([send.call(1)])  # expect: mypy, pyright
    app.enqueue_many([send.call("x", bcc="y")])  # expect: mypy, pyright
    app.enqueue_many([resize.call("a")])  # expect: mypy, pyright
    app.enqueue_many([resize.call("a", width="1")])  # expect: mypy, pyright
    app.enqueue_many([resize.call(None, "a", width=1)])  # expect: mypy, pyright
    app.enqueue_many([aggregate.call(target_date="2026-05-05")])  # expect: mypy, pyright
    app.enqueue_many([aggregate.call("no uuid", "2026-05-05")])  # expect: mypy, pyright
    app.enqueue_many([aggregate.call(uuid4(), "2026-05-05", 1)])  # expect: mypy, pyright
    app.enqueue_many([(1, 2)])  # expect: mypy, pyright
    app.enqueue_many([add.enqueue(1, 2)])  # expect: mypy, pyright


async def direct() -> None:
    add(1)  # expect: mypy, pyright
    add("1", 2)  # expect: mypy, pyright
    add(1, 2, 3)  # expect: mypy, pyright
    await send()  # expect: mypy, pyright
    await send(1)  # expect: mypy, pyright
    await send("x", bcc="y")  # expect: mypy, pyright
    resize("a")  # expect: mypy, pyright
    resize("a", width="1")  # expect: mypy, pyright
    resize(None, "a", width=1)  # expect: mypy, pyright
    await aggregate(target_date="2026-05-05")  # expect: mypy, pyright
    await aggregate("no uuid", "2026-05-05")  # expect: mypy, pyright
    await aggregate(uuid4(), "2026-05-05", 1)  # expect: mypy, pyright
