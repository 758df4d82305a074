"""Which pool asks for which jobs.

strands    async tasks               ┐ all but the jobs that must run alone, unless nobody can do that for
threads    sync tasks                ┘ these tasks (`isolation.py`)
children   tasks that always need a process, and of every other task the jobs that must run alone
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from shigoto.task import Task
from shigoto.worker.children.isolation import Isolation
from shigoto.worker.pool import Line, Pool


class Pools(Struct, frozen=True, eq=False):
    """The pools of one worker; one that cannot isolate has no children."""

    strands: Pool
    threads: Pool
    children: Pool | None


class Routes(Struct, frozen=True, eq=False):
    """All lines, and of them those of tasks that this worker cannot isolate, but another one might."""

    lines: list[Line]
    unable: list[Line]


def routes_of(
    tasks: Mapping[str, Task[..., Any]], isolation: Isolation, pools: Pools, *, shared: bool
) -> Routes:
    """The lines in which the pools ask; `shared` says that other processes can open the store."""
    able, unable = isolation.able, set(tasks) - isolation.able
    lines: list[Line] = []
    doubtful: list[Line] = []
    for pool, executor in ((pools.strands, "loop"), (pools.threads, "thread")):
        names = [name for name, task in tasks.items() if task.executor == executor]
        if here := [name for name in names if name in able]:
            lines.append(Line(pool, here, alone=False))
        if here := [name for name in names if name in unable]:
            lines.append(Line(pool, here, alone=False if shared else None))
            doubtful.append(lines[-1])
    if pools.children is not None:
        always = [name for name, task in tasks.items() if task.executor == "process"]
        others = [name for name in able if name not in always]
        lines += [Line(pools.children, always, alone=None)] if always else []
        lines += [Line(pools.children, others, alone=True)] if others else []
    return Routes(lines, doubtful if shared else [])
