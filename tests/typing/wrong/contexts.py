"""A context used as what it is not."""

import sqlite3

from shigoto import AsyncTransaction, Context, Shigoto
from tests.typing.declared import app


def words(ctx: Context) -> None:
    ctx.log("x", level="loud")  # expect: mypy, pyright
    ctx.log(5)  # expect: mypy, pyright
    ctx.overdue = True  # expect: mypy, pyright


async def transactions(ctx: Context, connection: sqlite3.Connection) -> None:
    async with ctx.transaction() as tx:
        tx.commit()  # expect: mypy, pyright
        rows = await tx.execute("SELECT 1")
        rows.fetchtwo()  # expect: mypy, pyright
    with ctx.transaction(connection) as joined:
        joined.execute("SELECT 1")  # expect: mypy, pyright
    total: int = ctx.transact(book)  # expect: mypy, pyright
    later: str = ctx.transact(book_later)  # expect: mypy, pyright
    print(total, later)


def book(tx: sqlite3.Connection) -> str:
    return str(tx.total_changes)


async def book_later(tx: AsyncTransaction) -> str:
    return str(tx)


@app.lifespan  # expect: mypy, pyright
def no_lifespan(app: Shigoto) -> int:
    return len(app.tasks)
