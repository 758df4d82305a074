"""The pools that ask for the jobs of each task, and the jobs that must run alone.

    loop_pool      async tasks               ┐ all but the jobs that must run alone, unless nobody can do that for
    thread_pool    sync tasks                ┘ these tasks
    process_pool   tasks that always need a process, and of every other task the jobs that must run alone

A child is a new interpreter, which imports the app anew. What it cannot find there, it cannot run: a function of the
main program or of a notebook, one that was made inside another, an app that no module has. Tasks that always need a
child are refused when the worker starts. For the others it only means that a job which must run alone waits for a
worker that can do that.

If for ten minutes no live worker could, such jobs run beside others again: a suspect that waits for ever would be lost
work. (With a store that only this process can open nobody else ever could, so they run at once.)
"""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from shigoto.app import Shigoto
from shigoto.model.errors import DeclarationError, OptionInvalid, StoreError, Unsupported
from shigoto.task import Task
from shigoto.worker.pool import Pool, WorkKind
from shigoto.worker.process import NOT_IMPORTABLE, Source
from shigoto.worker.state import Trouble, WorkerState

ASK_EVERY = 60.0  # seconds between questions whether another worker can run jobs alone
ALONE_FOR = 600.0  # seconds without one, until jobs that should run alone run beside others


class Isolation(Struct, frozen=True):
    """What a worker can run in child processes: jobs of the tasks `able`, from `source`; without a source none."""

    source: Source | None
    able: frozenset[str]


def isolation_of(app: Shigoto, source: Source | None, *, children: int, virtual: bool) -> Isolation:
    """What can run in child processes. Raises DeclarationError if a task that must cannot."""
    source = source or Source.of(app)
    obstacle = _obstacle(app, source, children=children, virtual=virtual)
    able: set[str] = set()
    refused: list[str] = []
    for task in app.tasks.values():
        reason = obstacle or _obstacle_of(task)
        if reason is None:
            able.update((task.name, *task.aliases))
        elif task.executor == "process":
            refused.append(f"task {task.name!r} needs a process of its own{_because(task)}, but {reason}.")
    if refused:
        raise DeclarationError("\n".join(refused))
    if source is None or not able:
        return Isolation(None, frozenset())
    return Isolation(source.with_modules_of(app).settled(app), frozenset(able))


def _obstacle(app: Shigoto, source: Source | None, *, children: int, virtual: bool) -> str | None:
    """Why this worker can have no child processes at all."""
    if not app.engine.capabilities.shared:
        return (
            f"the {app.engine.capabilities.name} engine exists in one process only;"
            " use a store that several can open, such as sqlite:///jobs.db"
        )
    if not _has_address(app):
        return "the path of the store is no text that could be told to another process; rename its folder"
    if os.name != "posix" or not sys.executable:
        return "this system cannot start one; run the worker on Linux or macOS"
    if virtual:
        return "a worker on virtual time has none; let it beat from a thread"
    if not children:
        return "the worker was given children=0; leave that out"
    if source is None:
        return (
            "its app is not found in any module that can be imported; make it a global variable of a module,"
            " or tell the worker where it is: Worker(app, source=Source(reference='module:attr'))"
        )
    return None


def _has_address(app: Shigoto) -> bool:
    try:
        return bool(app.engine.address)
    except (OptionInvalid, Unsupported):
        return False


def _obstacle_of(task: Task[..., Any]) -> str | None:
    """Why this task cannot run in a child process."""
    module, name = task.fn.__module__, task.fn.__qualname__
    if module in NOT_IMPORTABLE:
        return f"its function {name!r} is in the main program; move it to a module that can be imported"
    if "<locals>" in name:
        return f"its function {name!r} is made inside another; move it to the top level of its module"
    return None


def _because(task: Task[..., Any]) -> str:
    return "" if task.options.executor == "process" else ", because it has a timeout"


class IsolationWatch:
    """Lets jobs that should run alone run in ordinary pools, if nobody else can do better. `look` is called then.

    The `kinds` are those of tasks that this worker cannot isolate, in a store that others can open.
    """

    def __init__(self, state: WorkerState, kinds: Sequence[WorkKind], look: Callable[[], None]) -> None:
        self._state = state
        self._kinds = kinds
        self._look = look
        self._time = asyncio.get_running_loop().time
        self._since = self._time()
        self._trouble = Trouble(state, "isolation")

    async def run(self) -> None:
        """Ask once a minute, until cancelled."""
        while True:
            pause = await self._ask()
            await asyncio.sleep(pause)

    async def _ask(self) -> float:
        """Ask once, and return how many seconds to wait."""
        engine = self._state.engine
        try:
            workers = await engine.arun(engine.workers())
        except StoreError as error:
            return self._trouble.met(error)
        self._trouble.over()
        isolated = {
            task
            for worker in workers
            if worker.isolates and worker.fenced_at is None
            for task in worker.tasks
        }
        if all(isolated.issuperset(kind.tasks) for kind in self._kinds):
            self._since = self._time()
        self._take(None if self._time() - self._since >= ALONE_FOR else False)
        return ASK_EVERY

    def _take(self, alone: bool | None) -> None:
        for kind in self._kinds:
            if kind.alone is not alone:
                kind.alone = alone
                self._look()


class Pools(Struct, frozen=True, eq=False):
    """The pools of one worker; one that cannot isolate has none of processes."""

    loop: Pool
    thread: Pool
    process: Pool | None


class Routes(Struct, frozen=True, eq=False):
    """All kinds of work, and of them those of tasks that this worker cannot isolate, but another one might."""

    kinds: list[WorkKind]
    unable: list[WorkKind]


def routes_of(
    tasks: Mapping[str, Task[..., Any]], isolation: Isolation, pools: Pools, *, shared: bool
) -> Routes:
    """The kinds of work that the pools ask for; `shared` says that other processes can open the store."""
    able, unable = isolation.able, set(tasks) - isolation.able
    kinds: list[WorkKind] = []
    doubtful: list[WorkKind] = []
    for pool, executor in ((pools.loop, "loop"), (pools.thread, "thread")):
        names = [name for name, task in tasks.items() if task.executor == executor]
        if here := [name for name in names if name in able]:
            kinds.append(WorkKind(pool, here, alone=False))
        if here := [name for name in names if name in unable]:
            kinds.append(WorkKind(pool, here, alone=False if shared else None))
            doubtful.append(kinds[-1])
    if pools.process is not None:
        always = [name for name, task in tasks.items() if task.executor == "process"]
        others = [name for name in able if name not in always]
        kinds += [WorkKind(pools.process, always, alone=None)] if always else []
        kinds += [WorkKind(pools.process, others, alone=True)] if others else []
    return Routes(kinds, doubtful if shared else [])
