"""Steps a child process from system call to system call, and kills it before one of them. Linux only.

    calls = run_child(action, last=None)    how many calls `action` makes between its begin() and its end()
    run_child(action, last=7)               the same, but SIGKILL comes before the seventh

The calls of all its threads are counted together, in the order in which they begin. The tracer has no other children
meanwhile, and no threads: it is a program of its own.
"""

import ctypes
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from faults.tools.programs import NOT_ALLOWED

TRACEME, CONT, SYSCALL, SETOPTIONS = 0, 7, 24, 0x4200
TRACE_SYSGOOD, TRACE_CLONE, EXIT_KILL = 1, 8, 1 << 20
SYSCALL_STOP = signal.SIGTRAP | 0x80
WALL = 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def begin() -> None:
    """From here on the calls of this process are counted. Done again, it is a mark: the count so far is noted."""
    os.kill(os.getpid(), signal.SIGUSR1)


def end() -> None:
    """From here on they are not."""
    os.kill(os.getpid(), signal.SIGUSR2)


def run_child(
    action: Callable[[], None],
    last: int | None,
    *,
    started: Callable[[int], object] = id,
    marked: Callable[[int], object] = id,
) -> int:
    """Fork, and do `action` in the child; tells how many system calls it began between its begin() and its end().

    It is killed before the `last` of them. `started` is told the child's pid, `marked` each number that it marks.
    Raises SystemExit(NOT_ALLOWED) where the system lets nobody trace.
    """
    child = os.fork()
    if child == 0:
        if libc.ptrace(TRACEME, 0, None, None) != 0:
            os._exit(NOT_ALLOWED)
        os.kill(os.getpid(), signal.SIGSTOP)
        _act(action)
    started(child)
    try:
        return _trace(child, last, marked)
    finally:
        with suppress(ProcessLookupError):  # gone, unless the tracing failed
            os.kill(child, signal.SIGKILL)


def _act(action: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        action()
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def _trace(child: int, last: int | None, marked: Callable[[int], object]) -> int:
    _, status = os.waitpid(child, WALL)
    if os.WIFEXITED(status):
        raise SystemExit(os.WEXITSTATUS(status))
    libc.ptrace(SETOPTIONS, child, None, TRACE_SYSGOOD | TRACE_CLONE | EXIT_KILL)
    how, begun = CONT, 0
    inside: set[int] = set()  # threads between the beginning and the end of a call
    _resume(how, child)
    while True:
        thread, status = os.waitpid(-1, WALL)
        if not os.WIFSTOPPED(status):
            inside.discard(thread)
            if thread == child:
                return _ended(status, begun)
            continue
        reason, deliver = os.WSTOPSIG(status), 0
        if reason == SYSCALL_STOP:
            if thread not in inside:
                begun += 1
                if begun == last:
                    os.kill(child, signal.SIGKILL)
                    continue
            inside ^= {thread}
        elif reason == signal.SIGUSR1:
            if how == SYSCALL:
                marked(begun)
            how = SYSCALL
        elif reason == signal.SIGUSR2:
            how = CONT
        elif reason not in (signal.SIGTRAP, signal.SIGSTOP):
            deliver = reason
        _resume(how, thread, deliver)


def _ended(status: int, begun: int) -> int:
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0, f"the child failed with {os.WEXITSTATUS(status)}"
    return begun


def _resume(how: int, thread: int, deliver: int = 0) -> None:
    libc.ptrace(how, thread, None, deliver)
