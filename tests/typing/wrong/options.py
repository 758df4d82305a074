"""Misspelt options, and options with values that cannot be meant."""

from shigoto import Retry, Shigoto
from tests.typing.declared import add, aggregate, app, resize, send, tasks


def misspelt() -> None:
    add.using(dely=1)  # expect: mypy, pyright
    send.using(priorty=1).enqueue("x")  # expect: mypy, pyright
    resize.using(ky="a").call("a", width=1)  # expect: mypy, pyright
    aggregate.using(on_eror="log")  # expect: mypy, pyright
    app.task(que="mail")  # expect: mypy, pyright
    tasks.task(retires=3)  # expect: mypy, pyright
    app.find(sate="failed")  # expect: mypy, pyright
    app.enqueue_by_name("add", {}, dely=1)  # expect: mypy, pyright
    Shigoto(defaults={"que": "mail"})  # expect: mypy, pyright


def values() -> None:
    add.using(delay="soon")  # expect: mypy, pyright
    add.using(run_at="tomorrow")  # expect: mypy, pyright
    send.using(key_mode="keeep")  # expect: mypy, pyright
    send.using(retry=3)  # expect: mypy, pyright
    resize.using(on_error="ignore")  # expect: mypy, pyright
    aggregate.using(id="42")  # expect: mypy, pyright
    app.task(priority="high")  # expect: mypy, pyright
    app.task(delay=1)  # expect: mypy, pyright
    app.find(state="done")  # expect: mypy, pyright
    app.find(since="2h")  # expect: mypy, pyright
    app.find(args={"store": [7]})  # expect: mypy, pyright
    app.clear(state="finished")  # expect: mypy, pyright
    Retry.linear(hours=1)  # expect: mypy, pyright
    Retry.custom(lambda failures: 1, retries=1)  # expect: mypy, pyright
    app.task(executor="fiber")  # expect: mypy, pyright
    app.task(exclusive="yes")  # expect: mypy, pyright
    app.task(soft_timeout="soon")  # expect: mypy, pyright
    add.using(executor="process")  # expect: mypy, pyright
    add.using(soft_timeout="soon")  # expect: mypy, pyright
