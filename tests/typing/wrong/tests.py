"""Each marked line must be refused: what a test says of jobs is checked like the calls themselves."""

from shigoto.testing import Jobs
from tests.typing.declared import add, app, resize, send


def asserting(jobs: Jobs) -> None:
    jobs.assert_enqueued(add.call(1))  # expect: mypy, pyright
    jobs.assert_enqueued(send.call(7))  # expect: mypy, pyright
    jobs.assert_enqueued(resize.call("a.png", height=1))  # expect: mypy, pyright
    jobs.assert_enqueued(send.using(quue="mail").call("x"))  # expect: mypy, pyright
    jobs.assert_enqueued(send, quue="mail")  # expect: mypy, pyright
    jobs.assert_enqueued(send, count="two")  # expect: mypy, pyright
    jobs.assert_enqueued(send, state="asleep")  # expect: mypy, pyright
    jobs.assert_enqueued(7)  # expect: mypy, pyright
    jobs.refute_enqueued(add.call(1, "2"))  # expect: mypy, pyright
    jobs.refute_enqueued(send, delay="soon")  # expect: mypy, pyright
    jobs.enqueued(send, args=["x"])  # expect: mypy, pyright


def running(jobs: Jobs) -> None:
    app.test(run="sometimes")  # expect: mypy, pyright
    app.test(runs="inline")  # expect: mypy, pyright
    app.test(store=True)  # expect: mypy, pyright
    jobs.run_all(raise_error=True)  # expect: mypy, pyright
    jobs.advance(weeks=1)  # expect: mypy, pyright
    jobs.advance("1h")  # expect: mypy, pyright
    jobs.crash("send")  # expect: mypy, pyright
    jobs.crash(add, when="later")  # expect: mypy, pyright
