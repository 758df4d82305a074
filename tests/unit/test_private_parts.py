"""The private parts of other libraries that Shigoto uses: each in one module of src, with a test of what it relies on.

If one of these tests fails, a library has changed a part that it never promised. The module in `PARTS` must follow.
"""

import ast
import asyncio
import gc
import importlib
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest

import shigoto
from shigoto.handle import on_event_loop

SRC = Path(shigoto.__file__).parent


class Part(NamedTuple):
    """The module of src that uses it, and why no public part would do."""

    place: str
    why: str


PARTS = {
    "asyncio._get_running_loop": Part(
        "handle.py", "get_running_loop() raises if there is none, which takes three times as long."
    ),
    "asyncio._set_running_loop": Part(
        "testing/worker.py", "A sync handler in a test must find no running loop, as in a worker's thread."
    ),
    "asyncio.tasks._leave_task": Part("testing/worker.py", "Nor must it find a current task."),
    "asyncio.tasks._enter_task": Part("testing/worker.py", "The test goes on in the task that it was in."),
    "asyncio.Task._log_destroy_pending": Part(
        "engine/postgres/driver.py", "A ring that a program leaves behind on purpose must not be reported."
    ),
    "sys._current_frames": Part(
        "worker/thread_pool.py", "The report of a stuck job shows where its thread is."
    ),
    "opentelemetry.context._SUPPRESS_INSTRUMENTATION_KEY": Part(
        "observe/otel.py", "The requests that send spans must not be traced themselves."
    ),
    "asyncpg.pool.PoolConnectionProxy._con": Part(
        "engine/postgres/joining.py", "A pool lends out a new proxy each time; the connection stays the same."
    ),
    "psycopg._connect_gen": Part(
        "engine/postgres/pool.py", "An attempt to connect that the caller gives up must be closed."
    ),
    "smtplib.SMTP._get_socket": Part(
        "notify/mail.py", "The connection is opened before, to an address that was checked."
    ),
}
# Names in src that only look like such parts: variables of the environment, ends of names, placeholders.
OWN_TEXTS = {
    "_LIMIT",
    "_SHIGOTO_COMPLETE",
    "_SHIGOTO_LINE",
    "_by_itself",
    "_doctor_",
    "_password_env",
    "_password_file",
}
OF_NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_make"}
PUBLIC_IN_SPITE_OF_ITS_NAME = {"_exit"}  # of os, in its documentation


def test_private_part_asyncio_get_running_loop() -> None:
    async def within() -> bool:
        return on_event_loop()

    assert not on_event_loop()
    assert asyncio.run(within())


def test_private_part_asyncio_set_running_loop() -> None:
    assert asyncio.run(_without_a_loop()) == ["another loop", True, True]


def test_private_part_asyncio_leave_task() -> None:
    """asyncio.run() in a task raises, unless the task was left."""
    assert asyncio.run(_without_a_loop())[0] == "another loop"


def test_private_part_asyncio_enter_task() -> None:
    assert asyncio.run(_without_a_loop())[2]


async def _without_a_loop() -> list[object]:
    from shigoto.testing.worker import no_loop

    async def other() -> str:
        return "another loop"

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    with no_loop():
        found = asyncio.run(other())
    await asyncio.sleep(0)
    return [found, asyncio.get_running_loop() is loop, asyncio.current_task() is task]


def test_private_part_asyncio_log_destroy_pending(caplog: pytest.LogCaptureFixture) -> None:
    from shigoto.engine.postgres.driver import TELLS, _leave

    def lost(*, on_purpose: bool) -> list[str]:
        loop = asyncio.new_event_loop()
        task: Any = loop.create_task(asyncio.sleep(60), name="ring")
        loop.run_until_complete(asyncio.sleep(0))
        assert getattr(task, TELLS)
        if on_purpose:
            _leave({task})
        loop.close()
        caplog.clear()
        with caplog.at_level(logging.ERROR, logger="asyncio"):
            del task, loop
            gc.collect()
        return [record.getMessage().splitlines()[0] for record in caplog.records]

    assert lost(on_purpose=True) == []
    assert lost(on_purpose=False) == ["Task was destroyed but it is pending!"]


def test_private_part_sys_current_frames() -> None:
    from shigoto.worker.thread_pool import _frames_of_threads

    begun, end = threading.Event(), threading.Event()

    def wait_here() -> None:
        begun.set()
        end.wait()

    thread = threading.Thread(target=wait_here)
    thread.start()
    begun.wait()
    frame: Any = _frames_of_threads()[thread.ident or 0]
    functions = set[str]()
    while frame is not None:
        functions.add(frame.f_code.co_name)
        frame = frame.f_back
    end.set()
    thread.join()

    assert "wait_here" in functions


def test_private_part_opentelemetry_suppress_instrumentation_key() -> None:
    from opentelemetry import context
    from opentelemetry.sdk.trace import export

    from shigoto.observe import otel

    before: Any = context.get_current()
    otel._leave_untraced()
    quiet = context.get_value(getattr(export, otel.QUIET))
    context.attach(before)

    assert quiet is True


@pytest.mark.tier("full")  # the quick tier has no asyncpg
def test_private_part_asyncpg_con() -> None:
    from asyncpg.pool import PoolConnectionProxy

    from shigoto.engine.postgres.joining import OfAsyncpg

    connection = MagicMock()
    first, second = (PoolConnectionProxy(MagicMock(), connection) for _ in range(2))

    assert first is not second
    assert OfAsyncpg(first).connection is OfAsyncpg(second).connection is connection


async def test_private_part_psycopg_connect_gen() -> None:
    import psycopg

    class AskedError(Exception):
        pass

    class Thread(psycopg.Connection[Any]):
        @classmethod
        def _connect_gen(cls, *_: Any, **__: Any) -> Any:
            raise AskedError

    class Loop(psycopg.AsyncConnection[Any]):
        @classmethod
        def _connect_gen(cls, *_: Any, **__: Any) -> Any:
            raise AskedError

    with pytest.raises(AskedError):
        Thread.connect("host=127.0.0.1 port=1")
    with pytest.raises(AskedError):
        await Loop.connect("host=127.0.0.1 port=1")


def test_private_part_smtplib_get_socket() -> None:
    from shigoto.notify import mail

    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"220 hello\r\n")
        settings: Any = SimpleNamespace(host="192.0.2.1", port=25)  # which no connection reaches
        server: Any = mail._Conversation(ours, settings, "here")

        assert server.sock is ours
        server.close()


async def test_uvicorn_has_what_guarded_connections_use() -> None:
    """Not private by its name, but in no documentation."""
    from uvicorn import Config
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    from uvicorn.server import ServerState

    from shigoto.server.listen import GuardedProtocol

    hooks = {name for name, value in vars(GuardedProtocol).items() if callable(value) and name[0] != "_"}
    config = Config(app=MagicMock())
    config.load()
    protocol = HttpToolsProtocol(config=config, server_state=ServerState(), app_state={})
    protocol.connection_made(MagicMock())
    protocol.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n")

    assert hooks <= set(dir(HttpToolsProtocol))
    assert protocol.loop is asyncio.get_running_loop()
    assert protocol.cycle is not None
    assert (protocol.cycle.more_body, protocol.cycle.response_complete) == (True, False)
    assert protocol.cycle.disconnected is False
    assert isinstance(protocol.cycle.message_event, asyncio.Event)
    protocol.cycle.disconnected = True
    protocol.connection_lost(None)


def test_every_private_part_has_its_test() -> None:
    tests = {name.removeprefix("test_private_part_") for name in globals()}

    assert [part for part in PARTS if _short(part) not in tests] == []


def _short(part: str) -> str:
    """The library and the attribute, as in the names of the tests."""
    library, *_, attribute = part.split(".")
    return f"{library}_{attribute.lstrip('_').lower()}"


def test_the_list_has_all_private_parts_that_src_uses() -> None:
    trees = {path.relative_to(SRC).as_posix(): ast.parse(path.read_text()) for path in SRC.rglob("*.py")}
    own = {name for tree in trees.values() for name in _defined(tree)}
    found = {(part, place) for place, tree in trees.items() for part in _used(tree, own)}

    assert found == {(name.rpartition(".")[2], part.place) for name, part in PARTS.items()}


def _defined(tree: ast.AST) -> Iterator[str]:
    """The names that src gives to things of its own."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from () if node.name in ("_connect_gen", "_get_socket") else (node.name,)
            case ast.ClassDef():
                yield node.name
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.arg():
                yield node.arg
            case _:
                pass


def _used(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """The private names that a module asks for as attributes or as texts, or overrides, and that are not its own."""
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                imported |= {alias.asname or alias.name: alias.name for alias in node.names}
            case ast.ImportFrom(module=str(module)):
                imported |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names}
                yield from (alias.name for alias in node.names if _is_private(alias.name))
            case ast.Attribute():
                yield from (node.attr,) if _is_private(node.attr) and node.attr not in own else ()
            case ast.Constant(value=str(text)):
                if text.isidentifier() and _is_private(text) and text not in own | OWN_TEXTS:
                    yield text
            case ast.ClassDef():
                yield from _overridden(node, imported)
            case _:
                pass


def _overridden(node: ast.ClassDef, imported: dict[str, str]) -> Iterator[str]:
    for base in node.bases:
        name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
        first, _, rest = name.partition(".")
        module, _, attribute = f"{imported.get(first, '')}{'.' if rest else ''}{rest}".rpartition(".")
        if not module or module.startswith("shigoto"):
            continue
        theirs = getattr(importlib.import_module(module), attribute)
        for each in node.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and _is_private(each.name):
                yield from (each.name,) if hasattr(theirs, each.name) else ()


def _is_private(name: str) -> bool:
    allowed = OF_NAMED_TUPLES | PUBLIC_IN_SPITE_OF_ITS_NAME
    return name.startswith("_") and not name.startswith("__") and len(name) > 1 and name not in allowed
