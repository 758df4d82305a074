"""An app with one task, a clock that obeys, and a hand that does the part of a worker."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from shigoto import Job, Shigoto
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.protocol import Engine
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.ids import uuid7
from shigoto.model.job import Lease
from shigoto.model.worker import Announcement, Ending, Settlement, SweepOrder, Want


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1_777_982_400_000

    def __call__(self) -> int:
        return self.now


class Shop:
    """An app with one task, and a hand that does a worker's part."""

    def __init__(self, make: Callable[[Clock], Engine] = lambda clock: MemoryEngine(clock=clock)) -> None:
        self.clock = Clock()
        self.app = Shigoto(engine=make(self.clock))
        self.engine = self.app.engine
        self.worker = uuid7()
        self.engine.run(
            self.engine.announce(
                Announcement(id=self.worker, name="w", tasks=("price",), queues=None, slots=9, version="1")
            )
        )

        @self.app.task
        def price(item: str) -> tuple[str, UUID | None]:
            return item, None

        self.price = price

    def claim(self) -> Lease:
        want = Want(tasks=("price",), queues=None, limit=1)
        [lease] = self.engine.run(self.engine.claim(self.worker, [want]))
        return lease

    def settle(self, ending: Ending, **details: Any) -> None:
        """Run the next job so that it ends like this."""
        lease = self.claim()
        settlement = Settlement(
            number=lease.number, token=lease.token, queue=lease.queue, ending=ending, **details
        )
        self.engine.run(self.engine.settle(self.worker, [settlement]))

    def sweep(self) -> None:
        self.engine.run(self.engine.sweep(SweepOrder()))


@contextmanager
def opened_shop(engine: str, folder: Path) -> Iterator[Shop]:
    """A shop on the engine of this name."""

    def on_file(clock: Clock) -> Engine:
        return SqliteEngine(folder / "jobs.db", synchronous="normal", clock=clock)

    shop = Shop(on_file) if engine == "sqlite" else Shop()
    yield shop
    shop.app.close()


def numbers(jobs: list[Job]) -> list[int]:
    return [job.number for job in jobs]
