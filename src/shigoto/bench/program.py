"""What one runner process of a bench runs: a worker like any other, but told when to begin.

    python -m shigoto.bench.program

The first line on standard input is a `Begin`, each further one an order; the answers go to standard output, a line
each. When standard input ends, so does this process, whatever it does then: nobody is left to hear of it.

    drain   run all jobs, and tell what that took: `Drained`
    serve   run jobs until the end, and write an empty line for each that has completed
"""

import asyncio
import os
import sys
import threading
import time
from collections import deque
from queue import SimpleQueue

from msgspec import Struct, json

from shigoto.app import Shigoto
from shigoto.bench.tasks import declare
from shigoto.bench.usage import forget_most, memory, most_memory, processor
from shigoto.observe.events import JobCompleted
from shigoto.worker.process.kin import ORPHANED
from shigoto.worker.supervisor.mainloop import event_loop
from shigoto.worker.worker import Worker

STOPS_WITHIN = 5.0  # seconds from the end of standard input
CHUNK = 65_536


class Begin(Struct, frozen=True):
    """Where the jobs are."""

    url: str
    queue: str


class Drained(Struct, frozen=True):
    """When the worker began and ended, on the clock that all processes share, and what it used; bytes, seconds."""

    began: float
    ended: float
    cpu: float
    memory_before: int
    most_memory: int


class Program:
    """One runner process, from its first line to the last."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._orders: SimpleQueue[bytes | None] = SimpleQueue()
        self._worker: Worker | None = None
        self._over = False

    def run(self) -> int:
        """Do what is ordered, until there is nobody who orders."""
        first = self._read()
        if first is None:
            return ORPHANED
        begin = json.decode(first, type=Begin)
        app = Shigoto(begin.url)
        declare(app)
        threading.Thread(target=self._listen, name="shigoto-bench-orders", daemon=True).start()
        with asyncio.Runner(loop_factory=event_loop()) as runner:
            # Opens the store and imports what a worker needs, so that none of it is counted later.
            runner.run(self._work(app, begin.queue, drain=True))
            _answer(b"")
            while order := self._orders.get():
                if order == b"drain":
                    _answer(json.encode(runner.run(self._drain(app, begin.queue))))
                else:
                    app.bus.subscribe(lambda _: _answer(b""), JobCompleted)
                    runner.run(self._work(app, begin.queue, drain=False))
        app.close()
        return 0

    async def _drain(self, app: Shigoto, queue: str) -> Drained:
        forget_most()
        before, cpu, began = memory(), processor(), time.monotonic()
        await self._work(app, queue, drain=True)
        ended = time.monotonic()
        return Drained(began, ended, processor() - cpu, before, most_memory())

    async def _work(self, app: Shigoto, queue: str, *, drain: bool) -> None:
        self._worker = Worker(app, queues=(queue,), drain=drain, name=f"{queue}:{os.getpid()}", any_role=True)
        if not self._over:
            await self._worker.run()

    def _listen(self) -> None:
        """Pass orders on; at the end make the worker hurry, and do not wait for long."""
        while (line := self._read()) is not None:
            self._orders.put(line)
        self._over = True
        for _ in range(2):
            if self._worker is not None:
                self._worker.stop()
        self._orders.put(None)
        time.sleep(STOPS_WITHIN)
        os._exit(ORPHANED)

    def _read(self) -> bytes | None:
        """The next line; not by a stream, whose lock a thread that still reads would hold at the exit."""
        while not self._lines:
            some = os.read(sys.stdin.fileno(), CHUNK)
            if not some:
                return None
            *lines, self._rest = (self._rest + some).split(b"\n")
            self._lines.extend(lines)
        return self._lines.popleft()


def _answer(line: bytes) -> None:
    os.write(sys.stdout.fileno(), line + b"\n")


if __name__ == "__main__":
    sys.exit(Program().run())
