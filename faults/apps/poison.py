"""The app of the poison jobs: each ends its process in another way. And one for the innocents around them."""

import asyncio
import ctypes
import logging
import os
import signal

from shigoto import Shigoto

app = Shigoto()
logger = logging.getLogger("poison")


@app.task
async def innocent(milliseconds: int) -> None:
    await asyncio.sleep(milliseconds / 1000)


@app.task
def kills_itself() -> None:
    logger.info("about to send SIGKILL")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
async def follows_a_null_pointer() -> None:
    logger.info("about to read address 0")
    ctypes.string_at(0)


@app.task
def exits() -> None:
    logger.info("about to leave")
    os._exit(3)


@app.task
def exits_like_a_watchdog() -> None:
    os._exit(70)


@app.task
async def exits_like_an_orphan() -> None:
    os._exit(71)


@app.task(executor="process")
def exits_in_a_process() -> None:
    os._exit(4)


@app.task
def takes_all_memory() -> None:
    logger.info("about to take all memory")
    hoard: list[bytearray] = []
    while True:
        hoard.append(bytearray(b"x") * 16 * 1024 * 1024)
