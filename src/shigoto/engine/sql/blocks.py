"""What transaction blocks of all SQL engines share: how they are left, and the words they refuse things with."""

import asyncio
from typing import Any

NOT_YOURS = (
    "The transaction of a block is not ended by hand: leave the block to commit it together with the job's completion,"
    " or raise out of it to roll it back. For a part that may fail there are savepoints."
)
ONCE = "A transaction block is entered once."
OVER = "The transaction block is over: its connection cannot be used any more."
GIVEN_UP = "The handler has returned while this transaction block was open, so it was rolled back."
NO_TRANSACTION = (
    "The connection that was handed in is in no transaction, so the job would be committed at once, whatever becomes of"
    " your own changes."
)
FOREIGN = (
    "This process was forked inside a transaction block, which belongs to the process that opened it."
    " Start processes before the block or after it."
)


async def to_its_end(future: "asyncio.Future[Any]") -> None:
    """Wait for what must be known, however often the waiting is cancelled; the cancel comes through afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    failed = future.exception()
    if cancelled is not None:
        raise cancelled
    if failed is not None:
        raise failed
