"""Commands run within the test's own process, and stores for them to work on."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from shigoto import cli
from shigoto.engine.open import open_engine
from shigoto.engine.protocol import Engine
from shigoto.model.ids import uuid7
from shigoto.model.job import Job, JobFilter, JobSpec, Lease
from shigoto.model.worker import Announcement, Ending, Settlement, Want


class Outcome:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        """What was printed, without the blanks around."""
        return [line.strip() for line in self.out.splitlines()]


Command = Callable[..., Outcome]


def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command and gives what came of it."""

    def run(*words: str) -> Outcome:
        capsys.readouterr()
        code = cli.execute(list(words))
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@contextmanager
def own_signals() -> Iterator[None]:
    """Signals are as before afterwards: a worker's process ends with its command, and that of a test does not."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    former = {number: signal.getsignal(number) for number in numbers}
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    for number, handler in former.items():
        signal.signal(number, handler)


class Store:
    """A store with a hand that does the part of a worker."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine: Engine = open_engine("jobs.db") if engine is None else engine
        self.worker: UUID = uuid7()
        self.announce()

    def announce(self, **changes: Any) -> None:
        fields: dict[str, Any] = {"id": self.worker, "name": "anvil", "tasks": ("send",), "queues": None}
        fields |= {"slots": 4, "version": "1.2", "host": "smithy", "pid": 4711}
        self.engine.run(self.engine.announce(Announcement(**{**fields, **changes})))

    def enqueue(self, **changes: Any) -> JobSpec:
        fields: dict[str, Any] = {"id": uuid7(), "task": "send", "queue": "mail", "payload": '{"to":"Ada"}'}
        spec = JobSpec(**{**fields, **changes})
        self.engine.run(self.engine.enqueue_many([spec]))
        return spec

    def claim(self, task: str = "send") -> Lease:
        want = Want(tasks=(task,), queues=None, limit=1)
        [lease] = self.engine.run(self.engine.claim(self.worker, [want]))
        return lease

    def settle(self, lease: Lease, ending: Ending, **details: Any) -> None:
        end = Settlement(number=lease.number, token=lease.token, queue=lease.queue, ending=ending, **details)
        self.engine.run(self.engine.settle(self.worker, [end]))

    def ended(self, ending: Ending, *, details: dict[str, Any] | None = None, **changes: Any) -> JobSpec:
        """A job that ended so."""
        spec = self.enqueue(**changes)
        self.settle(self.claim(), ending, **(details or {}))
        return spec

    def jobs(self) -> list[Job]:
        return self.engine.run(self.engine.find(JobFilter(limit=1_000)))

    def state(self, number: int) -> str:
        [job] = [job for job in self.jobs() if job.number == number]
        return job.state


def on_terminal(
    answer: str,
    *words: str,
    interrupt_at: str | None = None,
    interrupt_with: signal.Signals = signal.SIGINT,
    at_question: Callable[[], str] | None = None,
    **environment: str,
) -> tuple[int, str]:
    """The exit code and what the terminal showed, of a command to which somebody answered.

    As soon as it has shown `interrupt_at`, it gets a signal, which is that of Ctrl-C unless another is named. What
    `at_question` returns is the answer to the first question.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "shigoto", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", **environment},
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    shown = b""
    try:
        while chunk := _read(ours):
            shown += chunk
            if interrupt_at is not None and interrupt_at in shown.decode(errors="replace"):
                process.send_signal(interrupt_with)
                interrupt_at = None
            if at_question is not None and b"[y/N]" in shown:
                os.write(ours, at_question().encode())
                at_question = None
        return process.wait(timeout=60), shown.decode()
    finally:
        os.close(ours)
        process.kill()
        process.wait()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4_096)
    except OSError:  # the other side is closed
        return b""
