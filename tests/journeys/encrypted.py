"""Where encryption is tried: an app with keys on each kind of store, and somebody who looks at everything in it."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from shigoto import Context, Encryption, Secret, Shigoto, Task
from shigoto.worker import Worker
from tests.postgres import ALWAYS, Yard, make_store

CANARY = "canary-4711-yellow"
OLD, NEW = bytes(range(32)), bytes(range(32, 64))
STORES = ("sqlite", pytest.param("postgres", marks=pytest.mark.engine("postgres")), "memory")
DURABLE = STORES[:2]


class Shop:
    """An app whose jobs carry the canary, and say it wherever a job can say something."""

    def __init__(self, url: str, keys: Encryption | None) -> None:
        self.url = url
        self.app = app = Shigoto(url, encryption=keys)

        @app.task(retries=0)
        def talk(ctx: Context, word: str, fail: bool = False) -> dict[str, str]:
            ctx.progress(0.5, f"progress {word}")
            ctx.log(f"line {word}\nsecond line {word}")
            ctx.checkpoint({"at": word})
            if fail:
                raise ValueError(f"no {word}")
            return {"said": word}

        @app.task(retries=0)
        async def finish(ctx: Context, word: str) -> str | None:
            async with ctx.transaction() as tx:
                tx.finish(word)
            return word

        @app.task(retries=0, encrypt=False)
        def login(token: Secret[str]) -> None:
            raise ValueError(f"not {token}")

        @app.task
        def resume(ctx: Context, word: str) -> Any:
            if ctx.resume_from is None:
                ctx.checkpoint({"at": word})
                raise ValueError(word)
            return ctx.resume_from

        self.talk: Task[..., Any] = talk
        self.finish: Task[..., Any] = finish
        self.login: Task[..., Any] = login
        self.resume: Task[..., Any] = resume

    def with_keys(self, keys: Encryption | None) -> "Shop":
        """The same app elsewhere, on the same store."""
        other = Shop(self.url, keys)
        if self.url == "memory:":
            other.app = Shigoto(engine=self.app.engine, encryption=keys)
            for task in (self.talk, self.finish, self.login, self.resume):
                other.app.task(retries=0, name=task.name)(task.fn)
        return other

    def drain(self, **options: Any) -> None:
        """Run all that is there."""
        asyncio.run(Worker(self.app, drain=True, any_role=True, **options).run())


@contextmanager
def opened(store: str, request: pytest.FixtureRequest, keys: Encryption | None) -> Iterator[Shop]:
    """A shop on one of the STORES."""
    folder: Path = request.getfixturevalue("tmp_path")
    with ExitStack() as stack:
        url = {"sqlite": f"sqlite:///{folder / 'jobs.db'}", "memory": "memory:"}.get(store)
        if url is None:
            yard: Yard = request.getfixturevalue("postgres_yard")
            url = stack.enter_context(yard.emptied(ALWAYS, make_store))
        shop = Shop(url, keys)
        stack.callback(shop.app.close)
        yield shop


def connect(shop: Shop) -> Any:
    """A connection of the caller's own, without a transaction."""
    sqlite = shop.url.startswith("sqlite")
    return shop.app.connect() if sqlite else psycopg.connect(shop.url, autocommit=True)


def dumped(shop: Shop, folder: Path) -> str:
    """All that a thief of the store would have: the bytes of the file and of its log, or every row of every table."""
    if shop.url.startswith("sqlite"):
        files = sorted(folder.glob("jobs.db*"))
        assert folder / "jobs.db-wal" in files
        return "\n".join(file.read_bytes().decode("latin-1") for file in files)
    with closing(psycopg.connect(shop.url)) as connection:
        tables = connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname LIKE 'shigoto%'"
        ).fetchall()
        assert len(tables) > 10
        rows: list[str] = []
        for [table] in tables:
            with connection.cursor().copy(f"COPY {table} TO STDOUT") as copy:
                rows += [bytes(part).decode() for part in copy]
    return "\n".join(rows)
