"""What the specifications ask of the project rather than of its workings: its inputs, its pages, its size."""

import ast
import asyncio
import builtins
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dev
from shigoto import Job, PayloadInvalid, PayloadTooLarge, Retry, Shigoto, State, demo
from shigoto.cli import worker
from shigoto.engine.op import drive
from shigoto.engine.sqlite.dialect import execute
from shigoto.model import errors
from shigoto.model.job import JobFilter
from shigoto.testing.store import START, VirtualClock
from shigoto.worker.supervisor import store
from tests.fundamentals.stage import Stage
from tests.virtual_loop import run_virtual

GUIDES = dev.ROOT / "docs" / "guides"

HOSTILE = """'); DROP TABLE shigoto_job; -- " ` ? ?1 :name %s {0} \\ \N{SNOWMAN}"""


# Payloads


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"user_id": "seven"}, "user_id"),
        ({"recipients": ["a@example.com", 7]}, "recipients"),
        ({"user_data": []}, "user_data"),
        ({"colour": "red"}, "colour"),
        ({"message": float("nan")}, "message"),
    ],
)
def test_a_payload_is_checked_by_its_schema_before_it_is_stored(payload: dict[str, Any], why: str) -> None:
    """S0-67"""
    app = demo.app("memory:")

    with pytest.raises(PayloadInvalid, match=why):
        app.enqueue_by_name("user_created", payload)

    assert app.find() == []
    schema = app.tasks["user_created"].signature.json_schema()
    assert schema["additionalProperties"] is False
    assert schema["properties"]["message"]["type"] == "string"


def test_a_payload_has_a_largest_size_and_a_largest_depth() -> None:
    """S0-67"""
    app = demo.app("memory:")
    deep: Any = "bottom"
    for _ in range(70):
        deep = [deep]

    with pytest.raises(PayloadTooLarge, match=r"1,048,\d+ bytes of JSON are over the limit"):
        app.enqueue_by_name("user_created", {"message": "x" * 2**20})
    with pytest.raises(PayloadInvalid, match="deep"):
        app.enqueue_by_name("user_created", {"user_data": {"deep": deep}})

    assert app.find() == []


@pytest.mark.engine("sqlite")
def test_text_that_looks_like_sql_is_text(tmp_path: Path) -> None:
    """S0-67: in every place where a user's text reaches a statement."""
    app = demo.app(f"sqlite:///{tmp_path / 'jobs.db'}")
    payload = {"message": HOSTILE, "user_data": {HOSTILE: HOSTILE}}
    options: dict[str, Any] = {
        "key": HOSTILE,
        "tenant": HOSTILE,
        "tags": [HOSTILE],
        "meta": {HOSTILE: HOSTILE},
    }
    handle = app.enqueue_by_name("user_created", payload, **options)

    def found(**filters: Any) -> list[Job]:
        return app.find(**filters)

    assert [job.id for job in found(key=HOSTILE)] == [handle.id]
    assert [job.id for job in found(tenant=HOSTILE)] == [handle.id]
    assert [job.id for job in found(tag=HOSTILE)] == [handle.id]
    assert [job.id for job in found(args={"message": HOSTILE})] == [handle.id]
    for empty in ({"task": HOSTILE}, {"queue": HOSTILE}, {"worker": HOSTILE}, {"error": HOSTILE}):
        assert found(**empty) == []
    job = handle.job()
    assert (job.key, job.tenant, job.tags, job.state) == (HOSTILE, HOSTILE, (HOSTILE,), State.PENDING)
    assert app.tasks["user_created"].signature.decode(job.payload) == payload
    app.close()


@pytest.mark.engine("sqlite")
def test_what_is_asked_for_stands_beside_a_statement_and_never_in_it(tmp_path: Path) -> None:
    """S0-67: in the text of no statement that looks for jobs, be it to show or to delete them, is what it looks for."""
    app = demo.app(f"sqlite:///{tmp_path / 'jobs.db'}")
    app.enqueue_by_name("user_created", {"message": HOSTILE}, key=HOSTILE, tenant=HOSTILE, tags=[HOSTILE])
    texts: list[str] = []
    words = ("queue", "task", "tenant", "key", "tag", "worker", "error", "failure_kind")
    asked: list[dict[str, Any]] = [{word: HOSTILE} for word in words]
    asked += [{"args": ((HOSTILE, HOSTILE),)}, dict.fromkeys(words, HOSTILE)]

    with closing(app.connect()) as connection:

        def run(command: Any) -> Any:
            texts.append(getattr(command, "text", ""))
            return execute(connection, command)

        for filters in asked:
            for state in (None, *State):
                wanted = JobFilter(state=state, before=7, limit=7, **filters)
                drive(app.engine.find(wanted).start(), run)
                drive(app.engine.count(wanted).start(), run)
                drive(app.engine.deletable(wanted).start(), run)

    assert len(set(texts)) > 50
    assert [text for text in texts if "DROP TABLE" in text] == []
    app.close()


# What modules of the engine write into texts that they put together, beside constants in capitals: names of tables,
# columns and parameters, digits, and the path of the store in texts that are no statements. Nothing comes from users,
# but for the paths in what the gate of a moved store says, in which quotes are doubled.
HARMLESS = {
    "checkup.py": {"end", "path"},
    "claiming.py": {"'  UNION ALL\\n'.join(ranges)", "9 + number", "reason"},
    "commands.py": {"number"},
    "dialect.py": {"table"},
    "driver.py": {"name"},
    "engine.py": {
        "held",
        "options",
        "quote(storable('The path of the store', str(self._path)))",
        "self._synchronous",
    },
    "enqueueing.py": {"pairs"},
    "file.py": {
        "migration.name",
        "migration.version",
        "path",
        "self._path.absolute().as_uri()",
        "synchronous",
    },
    "looking.py": {
        "' AND '.join(asked)",
        "columns",
        "order",
        "state_tables.join.join(tables)",
        "table.error",
        "table.lane",
        "table.number",
    },
    "managing.py": {"part"},
    "moving.py": {
        "event",
        "event.lower()",
        "message",
        "move_lock.code",
        "move_lock.refusal(path)",
        "name",
        "names",
        "part",
        "places",
        "table",
    },
}


def test_no_statement_has_a_value_written_into_it() -> None:
    """S0-67: statements stand in files; where one is put together, by whatever means, it is of constants."""
    written = [
        f"{path.name}: {piece}"
        for folder in ("sql", "sqlite")
        for path in sorted((dev.ROOT / "src" / "shigoto" / "engine" / folder).glob("*.py"))
        for node in but_for_errors(ast.parse(path.read_text()))
        for piece in map(ast.unparse, written_into_text(node))
        if not piece.rpartition(".")[2].isupper() and piece not in HARMLESS.get(path.name, ())
    ]

    assert written == [], "pass it beside the statement; if no user can say what it is, name it in HARMLESS"


def test_a_value_written_into_a_statement_would_be_found() -> None:
    """However it is put there."""
    ways = [
        """Statement(f"SELECT {wanted.key}")""",
        """text = f"... WHERE key = '{wanted.key}'" """,
        """text += " AND key = '" + wanted.key""",
        """text = "SELECT '%s'" % wanted.key""",
        """text = QUERY % (LIMIT, wanted.key)""",
        """text = "SELECT {}".format(wanted.key)""",
        """text = QUERY.format(key=wanted.key)""",
        """text = QUERY.replace("?", wanted.key)""",
    ]

    for way in ways:
        pieces = [
            ast.unparse(piece) for node in but_for_errors(ast.parse(way)) for piece in written_into_text(node)
        ]
        assert any("wanted.key" in piece for piece in pieces), way


def but_for_errors(node: ast.AST) -> Iterator[ast.AST]:
    """Everything below a node but what is said in errors, which may quote users, and paths of files."""
    if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _is_said(ast.unparse(node.func))):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from but_for_errors(child)


def _is_said(name: str) -> bool:
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    return name == "Path" or (isinstance(kind, type) and issubclass(kind, BaseException))


def written_into_text(node: ast.AST) -> list[ast.expr]:
    """What becomes a part of a text here, if this is a place where a text is put together."""
    match node:
        case ast.FormattedValue(value=value):
            pieces = [value]
        case ast.BinOp(op=ast.Add(), left=left, right=right) if _is_text(left) or _is_text(right):
            pieces = [left, right]
        case ast.BinOp(op=ast.Mod(), right=ast.Tuple(elts=values)):
            pieces = values
        case ast.BinOp(op=ast.Mod(), left=left, right=right) if _is_text(left):
            pieces = [right]
        case ast.Call(
            func=ast.Attribute(attr="format" | "format_map" | "replace"), args=args, keywords=named
        ):
            pieces = [*args, *(each.value for each in named)]
        case _:
            pieces = []
    return [piece for piece in pieces if not _is_text(piece)]


def _is_text(node: ast.expr) -> bool:
    """Whether this is a text as it stands; what an f-string has in its gaps is found there."""
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return True
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return _is_text(left) or _is_text(right)
        case ast.Call(func=ast.Attribute(attr="format" | "format_map" | "replace")):
            return True
        case _:
            return False


# Statistics


def test_the_counts_come_every_thirty_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """S0-53: the first after thirty seconds, then again and again."""
    clock = VirtualClock()
    app = demo.app("memory:")
    told: list[int] = []

    async def main() -> None:
        telling = asyncio.create_task(store.tell_counts(lambda: app.engine, worker.STATS_EVERY))
        for _ in range(100):
            await asyncio.sleep(1)
            told.append(len(caplog.records))
        telling.cancel()

    with caplog.at_level("INFO", "shigoto.worker"):
        run_virtual(main, clock)

    assert clock.now - START == 100_000
    assert [told.index(count) + 1 for count in (1, 2, 3)] == [30, 60, 90]
    assert {record.getMessage() for record in caplog.records} == {
        "Job Stats - Pending: 0, Processing: 0, Completed: 0, Failed: 0"
    }


def test_the_counts_are_those_of_all_queues_by_state(caplog: pytest.LogCaptureFixture) -> None:
    """S0-53: in the words of the specification; jobs that were cancelled are none of the four."""
    stage = Stage()

    @stage.app.task(retries=0)
    async def work(seconds: float, fails: bool = False) -> None:
        await asyncio.sleep(seconds)
        assert not fails

    async def main() -> None:
        async with stage.working():
            for state, queues in {
                "later": "a",
                "long": "ab",
                "good": "abb",
                "bad": "aaab",
                "off": "abbbb",
            }.items():
                for queue in queues:
                    delay = 3_600 if state in ("later", "off") else 0
                    job = work.using(queue=queue, delay=delay)
                    handle = await job.aenqueue(20 if state == "long" else 1, fails=state == "bad")
                    if state == "off":
                        await handle.acancel()
            telling = asyncio.create_task(store.tell_counts(lambda: stage.engine, 10))
            await asyncio.sleep(15)
            telling.cancel()

    with caplog.at_level("INFO", "shigoto.worker"):
        stage.play(main)

    assert [message for message in caplog.messages if message.startswith("Job Stats")] == [
        "Job Stats - Pending: 1, Processing: 2, Completed: 3, Failed: 4"
    ]


# The project


def test_there_are_few_dependencies() -> None:
    """S0-80: three small libraries at most, and on Windows the time zones that other systems have."""
    project = tomllib.loads((dev.ROOT / "pyproject.toml").read_text())["project"]

    names = {re.split(r"[<>=!~; \[]", each)[0] for each in project["dependencies"]}

    assert names <= {"click", "cronsim", "msgspec", "tzdata"}


def test_retries_are_flexible_and_the_policy_of_each_specification_is_one_call() -> None:
    """S0-80, S0-61, S1-18: linear, at once, never, by powers, from a list, or a function of one's own."""
    app = Shigoto("memory:")
    policies = [
        (Retry.linear(minutes=5, retries=3), 4),
        (Retry.immediate(retries=5), 6),
        (Retry.never(), 1),
        (Retry.attempts(25), 25),
        (Retry.exponential(retries=2), 3),
        (Retry.delays([1, 60]), 3),
        (Retry.custom(lambda failures, error: failures, retries=7), 8),
    ]

    for position, (policy, most) in enumerate(policies):
        task = app.task(name=f"task-{position}", retry=policy)(_nothing)
        assert task.enqueue().job().max_failures == most
        assert task.using(retries=9).enqueue().job().max_failures == 10


def _nothing() -> None: ...


WATCHED_RUN = """
import sys
import pytest
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.protocol import Engine

names = {name for kind in Engine.__mro__ for name in vars(kind) if not name.startswith("_")}
methods = {name for name in names if callable(getattr(MemoryEngine, name))}
called = set()

def watched(name, method):
    def call(*args, **kwargs):
        called.add(name)
        return method(*args, **kwargs)
    return call

for name in methods:
    setattr(MemoryEngine, name, watched(name, getattr(MemoryEngine, name)))
code = pytest.main(["-q", "-p", "no:cacheprovider", "-k", "not Machine", "tests/engines/test_memory.py"])
print(len(methods), *sorted(methods - called), file=sys.stderr)
sys.exit(code)
"""


def test_every_method_of_the_queue_is_called_by_a_test_that_passes() -> None:
    """S0-74: the suite that every engine has to pass leaves no method of an engine out."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHED_RUN],
        cwd=dev.ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert done.returncode == 0, done.stdout
    count, *left_out = done.stderr.split()
    assert int(count) > 20
    assert left_out == []


# The pages


def page(name: str) -> str:
    """The words of a guide, on one line and without emphasis."""
    return re.sub(r"[*_`\s]+", " ", (GUIDES / name).read_text()).lower()


def test_the_documentation_says_that_a_job_may_run_more_than_once_and_why() -> None:
    """S0-69, S1-15: because of crashes, never because of a race."""
    text = page("twice.md")

    assert "at least once" in text
    assert "more than once" in text
    assert "idempotent because of crashes, never because of a race" in text
    assert "two workers never take the same job" in text


def test_the_documentation_says_where_secrets_belong() -> None:
    """S0-67: elsewhere; the job carries an id."""
    text = page("secrets.md")

    assert "keep the secret elsewhere, and pass an id" in text


def test_the_documentation_says_whether_the_loss_of_a_worker_counts_as_a_failure() -> None:
    """S1-26"""
    text = page("twice.md")

    assert "crashes are not failures" in text
    assert "max crashes=none" in text
