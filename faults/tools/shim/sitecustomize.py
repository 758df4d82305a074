"""Makes the wall clock of this process wrong, by as many nanoseconds as a mapped file says at the moment of asking.

Python imports this by itself at its start, if this folder is on its path (`faults/tools/clock.py` puts it there); the
`sitecustomize` that it would have imported otherwise comes after. The monotonic clock is left alone.
"""

import ctypes
import datetime
import gc
import importlib.util
import mmap
import os
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

VARIABLE = "SHIGOTO_CLOCK_OFF_BY"
HERE = os.path.dirname(os.path.abspath(__file__))


def set_wrong(path: str) -> None:
    """Replace what tells the time of day; the offset is read anew each time, as one word of memory."""
    with Path(path).open("rb") as file:
        offset = memoryview(mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)).cast("q")
    read_ns, read_any, read_any_ns = time.time_ns, time.clock_gettime, time.clock_gettime_ns

    def time_ns() -> int:
        return read_ns() + offset[0]

    def seconds() -> float:
        return time_ns() / 1e9

    def clock_gettime(clock: int) -> float:
        return seconds() if clock == time.CLOCK_REALTIME else read_any(clock)

    def clock_gettime_ns(clock: int) -> int:
        return time_ns() if clock == time.CLOCK_REALTIME else read_any_ns(clock)

    vars(time).update(
        time=seconds, time_ns=time_ns, clock_gettime=clock_gettime, clock_gettime_ns=clock_gettime_ns
    )
    _set_dates_wrong()


def _set_dates_wrong() -> None:
    real = datetime.datetime

    def now(kind: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return kind.fromtimestamp(time.time(), tz)

    def utcnow(kind: type[datetime.datetime]) -> datetime.datetime:
        return kind.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)

    def today(kind: type[datetime.date]) -> datetime.date:
        return kind.fromtimestamp(time.time())

    _replace(real, now=classmethod(now), utcnow=classmethod(utcnow), today=classmethod(today))
    _replace(datetime.date, today=classmethod(today))


def _replace(kind: type[Any], **methods: Any) -> None:
    """Methods of a type that is written in C, which must stay the same type: a subclass would not be taken for it."""
    [own] = [each for each in gc.get_referents(vars(kind)) if isinstance(each, dict)]
    own.update(methods)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def import_the_other() -> None:
    """What stands behind us on the path under the same name."""
    others = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":  # and not somebody who wants to know the variable's name
    if VARIABLE in os.environ:
        set_wrong(os.environ[VARIABLE])
    import_the_other()
