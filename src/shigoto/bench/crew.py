"""Runner processes of a bench, as the process sees them that has started them."""

import os
import select
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import IO

from msgspec import json

from shigoto.bench.figures import BenchFailed
from shigoto.bench.program import Begin, Drained
from shigoto.worker.process.launch import command, how_it_ended

STARTS_WITHIN = 60.0  # seconds
STOPS_WITHIN = 8.0  # a trifle more than it takes itself
LAST_WORDS = 10  # lines
CHUNK = 65_536


class Crew:
    """So many runner processes on one queue, from `__enter__`, which waits until they are ready, to `__exit__`."""

    def __init__(self, begin: Begin, count: int) -> None:
        self._begin = begin
        self._count = count
        self._runners: list[Runner] = []
        self._open = ExitStack()

    def __enter__(self) -> "Crew":
        with ExitStack() as in_case:
            logs = [in_case.enter_context(tempfile.TemporaryFile()) for _ in range(self._count)]
            in_case.callback(self._stop)
            for log in logs:
                self._runners.append(Runner(log))
            for runner in self._runners:
                runner.tell(json.encode(self._begin))
            self.hear(STARTS_WITHIN)
            self._open = in_case.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def drain(self, within: float) -> list[Drained]:
        """Let all run jobs at once until none is left, and tell what each has used. Raises BenchFailed."""
        for runner in self._runners:
            runner.tell(b"drain")
        return [json.decode(line, type=Drained) for line in self.hear(within)]

    def serve(self) -> None:
        """Let all run jobs until the end; each that has completed is an empty line to be heard."""
        for runner in self._runners:
            runner.tell(b"serve")

    def hear(self, within: float) -> list[bytes]:
        """The next line of each. Raises BenchFailed if one does not answer in time, or has ended."""
        deadline = time.monotonic() + within
        return [runner.hear(deadline) for runner in self._runners]

    def _stop(self) -> None:
        for runner in self._runners:
            runner.hang_up()
        deadline = time.monotonic() + STOPS_WITHIN
        for runner in self._runners:
            runner.end(deadline)


class Runner:
    """One process, and the two pipes to it; what it says beside is in the log."""

    def __init__(self, log: IO[bytes]) -> None:
        self._rest = b""
        self._log = log
        # A session of its own: Ctrl-C at the terminal is for us, and the end of the pipe is for it.
        self._process = subprocess.Popen(
            command("shigoto.bench.program", ()),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("A process was started without the pipes to it.")
        self._orders, self._answers = self._process.stdin, self._process.stdout

    def tell(self, line: bytes) -> None:
        """Give an order; if nobody is there any more, whoever waits for the answer shall know."""
        with suppress(BrokenPipeError):
            self._orders.write(line + b"\n")

    def hear(self, deadline: float) -> bytes:
        """The next line."""
        pipe = self._answers.fileno()
        while b"\n" not in self._rest:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([pipe], [], [], left)[0]:
                raise BenchFailed(
                    "A runner process did not answer in time. Is something else using the store?"
                )
            some = os.read(pipe, CHUNK)
            if not some:
                raise BenchFailed(self._obituary())
            self._rest += some
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def hang_up(self) -> None:
        """Let it know that it is not needed any more."""
        self._orders.close()

    def end(self, deadline: float) -> None:
        """Wait for its end, and make one at the deadline."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._process.kill()
            self._process.wait()
            self._answers.close()

    def _obituary(self) -> str:
        code = self._process.wait(STOPS_WITHIN)
        self._log.seek(0)
        said = self._log.read().decode("utf-8", "replace").strip().splitlines()[-LAST_WORDS:]
        return "\n".join([f"A runner process {how_it_ended(code)}.", *said])
