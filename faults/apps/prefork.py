"""A web server that forks its children after it has connected, and all of them enqueue: the program of E13.

    python -m faults.apps.prefork URL FOLDER GENERATIONS CHILDREN REQUESTS

The parent enqueues from a thread and on an event loop before it forks, and from the thread also while it does. When it
is connected it makes `FOLDER/connected` and waits for `FOLDER/fork`; when its children are gone it makes `FOLDER/done`,
enqueues as before, and waits for `FOLDER/end`. Each generation of children begins when the one before has ended. A
child that fails says why, and the exit code of the parent is how many did.
"""

import asyncio
import os
import sys
import threading
import time
import traceback
from pathlib import Path

from faults.evidence.records import Pen
from faults.stage import app_of
from shigoto import Shigoto
from shigoto.model.ids import uuid7

LOOK = 0.01  # seconds
PARENTS_PAUSE = 0.02


class Server:
    """One process of it, parent or child."""

    def __init__(self, app: Shigoto, pen: Pen) -> None:
        self._app = app
        self._pen = pen
        self._loop = asyncio.new_event_loop()
        self._over = threading.Event()

    def enqueue(self) -> None:
        """One job, from this thread."""
        id = uuid7()
        self._pen.write("try", job=str(id))
        self._app.tasks["asynchronous"].using(id=id).enqueue(milliseconds=0)
        self._pen.write("ok", job=str(id))

    async def aenqueue(self) -> None:
        """One job, on an event loop."""
        id = uuid7()
        self._pen.write("try", job=str(id))
        await self._app.tasks["asynchronous"].using(id=id).aenqueue(milliseconds=0)
        self._pen.write("ok", job=str(id))

    def enqueue_both_ways(self) -> None:
        """Two jobs of the parent, by connections that stay open."""
        self.enqueue()
        self._loop.run_until_complete(self.aenqueue())

    def enqueue_on_and_on(self) -> None:
        """In a thread of the parent: a fork comes in the midst of it."""
        while not self._over.wait(PARENTS_PAUSE):
            self.enqueue()

    def fork(self, generations: int, children: int, requests: int) -> int:
        """How many children have failed."""
        busy = threading.Thread(target=self.enqueue_on_and_on)
        busy.start()
        failed = 0
        for generation in range(generations):
            pids = [self._child(generation * children + at, requests) for at in range(children)]
            failed += sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in pids)
        self._over.set()
        busy.join()
        return failed

    def _child(self, number: int, requests: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            self._serve(number, requests)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        if number % 3 == 0:
            os._exit(0)  # without a goodbye
        if number % 3 == 1:
            self._app.close()
        sys.exit(0)

    def _serve(self, number: int, requests: int) -> None:
        """Half of the children ask from a thread, the others on a loop of their own."""
        if number % 2:
            for _ in range(requests):
                self.enqueue()
        else:
            asyncio.run(self._aserve(requests))

    async def _aserve(self, requests: int) -> None:
        at_once = 10
        for first in range(0, requests, at_once):
            await asyncio.gather(*(self.aenqueue() for _ in range(min(at_once, requests - first))))


def wait_for(path: Path) -> None:
    """Wait until somebody has made it."""
    while not path.exists():
        time.sleep(LOOK)


def main(url: str, folder: Path, generations: int, children: int, requests: int) -> int:
    """How many children have failed."""
    server = Server(app_of("jobs", url), Pen(Path(os.environ["SHIGOTO_LEDGER"])))
    server.enqueue_both_ways()
    (folder / "connected").touch()
    wait_for(folder / "fork")
    failed = server.fork(generations, children, requests)
    server.enqueue_both_ways()
    (folder / "done").touch()
    wait_for(folder / "end")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *(int(word) for word in sys.argv[3:6])))
