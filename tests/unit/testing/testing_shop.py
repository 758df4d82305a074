"""An app for tests of `app.test()`: a few tasks, and what they have done."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shigoto import Retry, Shigoto

EARLY = datetime(2026, 3, 1, tzinfo=UTC)


class Shop:
    """An app whose own store must never be touched, and what its handlers have done."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "jobs.db"
        self.app = app = Shigoto(f"sqlite:///{self.file}")
        self.done: list[Any] = []

        @app.task
        def note(word: str) -> str:
            self.done.append(word)
            return word.upper()

        @app.task
        async def anote(word: str) -> str:
            await asyncio.sleep(0)
            self.done.append(word)
            return word.upper()

        @app.task(retry=Retry.linear(minutes=5, retries=2))
        def fail(error: str) -> None:
            self.done.append(error)
            raise ValueError(error)

        @app.task
        def chain(left: int) -> None:
            self.done.append(left)
            if left:
                chain.enqueue(left - 1)

        @app.task
        async def achain(left: int) -> None:
            self.done.append(left)
            if left:
                await achain.aenqueue(left - 1)

        self.note, self.anote, self.fail, self.chain, self.achain = note, anote, fail, chain, achain
