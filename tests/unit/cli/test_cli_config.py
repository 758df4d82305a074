"""Settings in one place: file < environment < flags, and a command that shows who says what."""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from shigoto import OptionInvalid, Shigoto, cli
from shigoto.cli.settings import key_of, variable, worker_options
from shigoto.model.text import without_secrets
from shigoto.worker import Worker
from tests.unit.cli.pages import SnapshotCheck, session
from tests.unit.commands import Command, command, own_signals

SHOP = """
from shigoto import Shigoto

app = Shigoto("sqlite:///shop.db")

@app.task
def send(to: str) -> None: ...
"""

# A value for each option of the worker, as a file has it and as `config` shows it; and another for its variable.
SAID: dict[str, tuple[str, object, str, object]] = {
    "queues": ('["mail", "reports"]', "mail,reports", "other", "other"),
    "processes": ("4", 4, "5", 5),
    "concurrency": ("8", 8, "9", 9),
    "threads": ("2", 2, "3", 3),
    "children": ("0", 0, "1", 1),
    "drain": ("true", True, "0", False),
    "ticks": ("false", False, "1", True),
    "reload": ("true", True, "no", False),
    "max-jobs": ("7", 7, "8", 8),
    "max-memory": ("100", 100, "200", 200),
    "lease": ("12", 12.0, "13.5", 13.5),
    "poll": ("0.5", 0.5, "2", 2.0),
    "stop-timeout": ("1", 1.0, "0", 0.0),
    "name": ('"anvil"', "anvil", "hammer", "hammer"),
    "ready-file": ('"ready"', "ready", "there", "there"),
    "health": ("8711", "127.0.0.1:8711", "0.0.0.0:80", "0.0.0.0:80"),
    "stop-on-eof": ("true", True, "false", False),
    "stats-every": ("60", 60.0, "5", 5.0),
    "any-role": ("true", True, "no", False),
    "log-format": ('"json"', "json", "text", "text"),
    "log-level": ('"debug"', "debug", "error", "error"),
}


@pytest.fixture
def shigoto(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Runs a command in an empty current directory, and an environment without settings."""
    for name in list(os.environ):
        if name.startswith("SHIGOTO_") or name == "WORKER_COUNT":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)
    with own_signals():
        yield command(capsys)
    for name in set(sys.modules) - modules:
        if not name.startswith("shigoto"):
            del sys.modules[name]


def write(text: str, file: str = "shigoto.toml") -> None:
    Path(file).write_text(text, encoding="utf-8")


def settings(shigoto: Command, *words: str) -> dict[str, Any]:
    """What `config` tells programs."""
    outcome = shigoto(*words, "config", "--json")
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = outcome.json["settings"]
    return found


def told(found: dict[str, Any], name: str) -> tuple[object, str, str | None]:
    each = found[name]
    return each["value"], each["origin"], each["where"]


# What holds


def test_without_any_settings_there_are_the_built_in_tasks_on_workers_db(shigoto: Command) -> None:
    """S0-47, S0-51: the store may be left out, and is workers.db then. S0-23: three workers."""
    found = settings(shigoto)

    assert told(found, "app") == (None, "default", None)
    assert told(found, "url") == ("sqlite:///workers.db", "default", None)
    assert told(found, "worker.processes") == (3, "default", None)
    assert told(found, "worker.stats-every") == (30.0, "default", None)
    assert {each["origin"] for each in found.values()} == {"default"}
    assert set(found) == {"app", "url", *(f"worker.{key}" for key in SAID)}


@pytest.mark.parametrize(("file", "table"), [("shigoto.toml", ""), ("pyproject.toml", "tool.shigoto.")])
def test_a_file_sets_everything(shigoto: Command, file: str, table: str) -> None:
    write(SHOP, "config_shop.py")
    head = f"[{table.rstrip('.')}]\n" if table else ""
    options = "".join(f"{key} = {text}\n" for key, (text, *_) in SAID.items())
    write(
        f'{head}app = "config_shop"\nurl = "sqlite:///other.db"\n\n[{table}worker]\n{options}',
        file,
    )

    found = settings(shigoto)

    assert told(found, "app") == ("config_shop", "file", f"{file}: {table}app")
    assert told(found, "url") == ("sqlite:///other.db", "file", f"{file}: {table}url")
    for key, (_, value, *_) in SAID.items():
        assert told(found, f"worker.{key}") == (value, "file", f"{file}: {table}worker.{key}")


def test_a_variable_wins_over_the_file(shigoto: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    write("[worker]\n" + "".join(f"{key} = {text}\n" for key, (text, *_) in SAID.items()))
    for key, (_, _, text, _) in SAID.items():
        monkeypatch.setenv(variable(key), text)
    monkeypatch.setenv("SHIGOTO_URL", "env.db")

    found = settings(shigoto)

    assert told(found, "url") == ("env.db", "variable", "SHIGOTO_URL")
    for key, (_, _, _, value) in SAID.items():
        assert told(found, f"worker.{key}") == (value, "variable", variable(key))


def test_a_flag_wins_over_a_variable(shigoto: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    write(SHOP, "flag_shop.py")
    write('app = "file_shop"\nurl = "file.db"\n')
    monkeypatch.setenv("SHIGOTO_APP", "env_shop")
    monkeypatch.setenv("SHIGOTO_URL", "env.db")

    assert told(settings(shigoto), "app") == ("env_shop", "variable", "SHIGOTO_APP")
    for words in (("--app", "flag_shop", "--url", "flag.db", "config"), ("config", "--app", "flag_shop")):
        found = shigoto(*words, "--json").json["settings"]
        assert told(found, "app") == ("flag_shop", "flag", "--app")
    assert told(settings(shigoto, "--url", "flag.db"), "url") == ("flag.db", "flag", "--url")


def test_the_options_of_a_worker_win_over_variables_and_these_over_the_file(
    shigoto: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shigoto.cli.settings import find_option
    from shigoto.cli.target import CommandTarget
    from shigoto.cli.worker import worker

    write("[worker]\nconcurrency = 8\nthreads = 8\nlease = 8\n")
    monkeypatch.setenv("SHIGOTO_CONCURRENCY", "9")
    monkeypatch.setenv("SHIGOTO_THREADS", "9")
    target = CommandTarget()

    context = worker.make_context("worker", ["--concurrency", "10"], obj=target)

    options = worker_options()
    found = {
        name: find_option(context, options[name], target.settings)
        for name in ("concurrency", "threads", "lease")
    }
    assert {name: (each.value, str(each.origin)) for name, each in found.items()} == {
        "concurrency": (10, "--concurrency"),
        "threads": (9, "$SHIGOTO_THREADS"),
        "lease": (8.0, "shigoto.toml: worker.lease"),
    }


def test_every_option_of_the_worker_is_a_setting(shigoto: Command) -> None:
    from shigoto.cli.worker import worker

    options = [each for each in worker.params if isinstance(each, click.Option) and not each.hidden]

    assert {key_of(option) for option in options} == set(SAID)
    assert all(option.envvar == variable(option.opts[0]) for option in options)


def test_worker_count_counts_where_no_app_is_given_and_nobody_is_clearer(
    shigoto: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0-23: three workers by default; WORKER_COUNT says otherwise."""
    write(SHOP, "counted_shop.py")
    monkeypatch.setenv("WORKER_COUNT", "7")

    assert told(settings(shigoto), "worker.processes") == (7, "variable", "WORKER_COUNT")
    assert told(settings(shigoto, "--app", "counted_shop"), "worker.processes") == (1, "default", None)
    write("[worker]\nprocesses = 4\n")
    assert told(settings(shigoto), "worker.processes") == (7, "variable", "WORKER_COUNT")
    assert told(settings(shigoto, "--app", "counted_shop"), "worker.processes")[0] == 4
    monkeypatch.setenv("SHIGOTO_PROCESSES", "5")
    assert told(settings(shigoto), "worker.processes") == (5, "variable", "SHIGOTO_PROCESSES")
    monkeypatch.delenv("SHIGOTO_PROCESSES")
    monkeypatch.setenv("WORKER_COUNT", "many")
    outcome = shigoto("worker")
    assert outcome.code == 2
    assert "WORKER_COUNT must be a whole number from 1 to 1000, not 'many'." in outcome.err


def test_an_empty_variable_says_nothing(shigoto: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHIGOTO_APP", "SHIGOTO_URL", "SHIGOTO_POLL", "SHIGOTO_CONFIG", "WORKER_COUNT"):
        monkeypatch.setenv(name, "")

    assert {each["origin"] for each in settings(shigoto).values()} == {"default"}


def test_keys_may_have_dashes_or_underscores(shigoto: Command) -> None:
    write("[worker]\nstop_timeout = 3\nmax-jobs = 4\n")

    found = settings(shigoto)

    assert (found["worker.stop-timeout"]["value"], found["worker.max-jobs"]["value"]) == (3.0, 4)


def test_the_store_is_the_word_then_the_environment_then_the_file_then_the_app(
    shigoto: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0-47: the database path may be left out. A path in a file is relative to the current folder."""
    write(SHOP, "order_shop.py")
    write('app = "order_shop"\nurl = "sqlite:///file.db"\n')
    words = ("enqueue", "send", '{"to": "Ada"}')

    def stored(*words: str) -> set[str]:
        before = {path.name for path in Path().glob("*.db")}
        sys.modules.pop("order_shop", None)
        outcome = shigoto(*words)
        assert outcome.code == 0, outcome.err
        return {path.name for path in Path().glob("*.db")} - before

    assert stored(*words) == {"file.db"}
    monkeypatch.setenv("SHIGOTO_URL", "env.db")
    assert stored(*words) == {"env.db"}
    assert stored("enqueue", "word.db", *words[1:]) == {"word.db"}
    assert stored("--url", "flag.db", *words) == {"flag.db"}
    monkeypatch.delenv("SHIGOTO_URL")
    write('app = "order_shop"\n')
    assert stored(*words) == {"shop.db"}
    assert told(settings(shigoto), "url") == ("sqlite:///shop.db", "app", "the app")


# Which file


def test_shigoto_toml_wins_wholly_over_pyproject_toml_and_that_is_told(shigoto: Command) -> None:
    write("[worker]\nconcurrency = 8\n")
    write('[tool.shigoto]\nurl = "lost.db"\n[tool.shigoto.worker]\nthreads = 2\n', "pyproject.toml")

    outcome = shigoto("config", "--origin")

    assert "lost.db" not in outcome.out
    assert outcome.err == (
        "Warning: pyproject.toml has settings too, and none of them counts: shigoto.toml is there.\n"
    )
    told_to_programs = shigoto("config", "--json").json
    assert Path(told_to_programs["file"]) == Path("shigoto.toml").resolve()
    assert Path(told_to_programs["ignored"]) == Path("pyproject.toml").resolve()


def test_an_empty_shigoto_toml_overrules_nothing(shigoto: Command) -> None:
    write("# nothing yet\n")
    write("[tool.shigoto.worker]\nthreads = 2\n", "pyproject.toml")

    outcome = shigoto("config", "--origin")

    assert "pyproject.toml: tool.shigoto.worker.threads" in outcome.out
    assert outcome.err == ""


def test_a_pyproject_toml_of_others_is_left_alone(shigoto: Command) -> None:
    write("tool = [", "pyproject.toml")
    assert shigoto("config").code == 0

    write('[project]\ndependencies = ["shigoto"]\n', "pyproject.toml")
    assert shigoto("config", "--json").json["file"] is None


def test_a_variable_names_another_file_or_none(shigoto: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    write("[worker]\nthreads = 2\n")
    write("[worker]\nthreads = 3\n", "other.toml")

    monkeypatch.setenv("SHIGOTO_CONFIG", "other.toml")
    assert told(settings(shigoto), "worker.threads") == (3, "file", "other.toml: worker.threads")
    monkeypatch.setenv("SHIGOTO_CONFIG", os.devnull)
    assert told(settings(shigoto), "worker.threads") == (None, "default", None)
    monkeypatch.setenv("SHIGOTO_CONFIG", "absent.toml")
    outcome = shigoto("config")
    assert outcome.code == 2
    assert "absent.toml, which $SHIGOTO_CONFIG names, cannot be read" in outcome.err


def test_a_file_with_a_byte_order_mark_is_read(shigoto: Command) -> None:
    Path("shigoto.toml").write_bytes(b"\xef\xbb\xbf[worker]\nthreads = 2\n")

    assert settings(shigoto)["worker.threads"]["value"] == 2


# Mistakes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("app =", "shigoto.toml is no TOML: Invalid value (at "),
        ('ap = "shop"', "shigoto.toml: there is no setting ap. Did you mean 'app'?"),
        ("colour = 1", "shigoto.toml: there is no setting colour. Settings are: app, url, worker."),
        ("threads = 2", "there is no setting threads. It belongs into the table [worker]."),
        ("app = 3", "shigoto.toml: app must be a string such as 'shop.tasks:app', not 3."),
        ('url = ""', "shigoto.toml: url must be a string such as 'sqlite:///jobs.db', not ''."),
        ('url = ["x://ada:secret@host"]', "url must be a string such as 'sqlite:///jobs.db', not a list."),
        ('url = {password = "secret"}', "url must be a string such as 'sqlite:///jobs.db', not a table."),
        ("worker = 3", "shigoto.toml: worker must be a table, not 3."),
        ('worker = "x://ada:secret@host"', "shigoto.toml: worker must be a table, not 'x://ada:***@host'."),
        ("[worker]\nthread = 2", "worker.thread is no setting. Did you mean 'threads'?"),
        ("[worker]\ncolour = 2", "worker.colour is no setting. The settings of a worker are: queues, "),
        ('[worker]\nthreads = "2"', "must be a whole number from 1 to 10000, not '2'. Leave the quotes out."),
        ("[worker]\nthreads = 2.5", "worker.threads must be a whole number from 1 to 10000, not 2.5."),
        ("[worker]\nthreads = true", "worker.threads must be a whole number from 1 to 10000, not true."),
        ("[worker]\nthreads = 0", "worker.threads must be a whole number from 1 to 10000, not 0."),
        ("[worker]\nmax-memory = 0", "worker.max-memory must be a whole number of at least 1, not 0."),
        ("[worker]\npoll = 0", "worker.poll must be a number of seconds from 0.01 to 86400, not 0."),
        ("[worker]\nlease = nan", "worker.lease must be a number of seconds from 1 to 86400, not nan."),
        ("[worker]\nlease = false", "worker.lease must be a number of seconds from 1 to 86400, not false."),
        ("[worker]\ndrain = 1", "worker.drain must be true or false, not 1."),
        ('[worker]\nlog-level = "warn"', "error, critical, not 'warn'. Did you mean 'warning'?"),
        ("[worker]\nname = ['a']", "worker.name must be a string, not ['a']."),
        ("[worker]\nqueues = [1]", "worker.queues must be a string, or a list of them, not [1]."),
        ("[worker]\nqueues = []", "shigoto.toml: worker.queues: [] names no queue. Leave it out for all of"),
        ("[worker]\nqueues = ','", "shigoto.toml: worker.queues: ',' names no queue."),
        ("[worker]\nqueues = ''", "shigoto.toml: worker.queues: '' names no queue."),
        ("[worker]\nqueues = ['a,b']", "shigoto.toml: worker.queues: The queue 'a,b' must be kebab-case"),
        ("[worker]\nqueues = ['a', '']", "shigoto.toml: worker.queues: The queue '' must be kebab-case"),
        ("[worker]\nqueues = 'a:b'", "shigoto.toml: worker.queues: The queue 'a:b' must be kebab-case"),
        ("[worker]\nmax_jobs = 1\nmax-jobs = 1", "worker.max-jobs is there twice, once with '-' and once"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_place_and_nothing_is_done(
    shigoto: Command, text: str, message: str
) -> None:
    write(text)

    for words in (("config",), ("worker",), ("enqueue", "user_created"), ("stats",)):
        outcome = shigoto(*words)
        assert (outcome.code, outcome.out) == (2, "")
        assert message in outcome.err
        assert "shigoto.toml" in outcome.err
        assert "secret" not in outcome.err
    assert [path.name for path in Path().iterdir()] == ["shigoto.toml"]
    assert json.loads(shigoto("stats", "--json").err)["error"]["code"] == "CLI.USAGE"


def test_a_mistake_in_pyproject_toml_is_told_with_the_whole_key(shigoto: Command) -> None:
    for text, message in (
        ("tool.shigoto = 3", "pyproject.toml: tool.shigoto must be a table, not 3."),
        ("[tool.shigoto.worker]\nthreads = -1", "pyproject.toml: tool.shigoto.worker.threads must be"),
        ("[tool.shigoto]\nthreads = 1", "It belongs into the table [tool.shigoto.worker]."),
        ("[tool.shigoto\n", "pyproject.toml is no TOML: "),
    ):
        write(text, "pyproject.toml")
        outcome = shigoto("config")
        assert outcome.code == 2
        assert message in outcome.err


def test_a_file_that_cannot_be_read_is_told(shigoto: Command) -> None:
    Path("shigoto.toml").mkdir()
    assert "shigoto.toml cannot be read: Is a directory." in shigoto("config").err

    Path("shigoto.toml").rmdir()
    Path("shigoto.toml").write_bytes(b'app = "sh\xf6p"')
    outcome = shigoto("config")
    assert outcome.code == 2
    assert "shigoto.toml is not in UTF-8: byte 10 is no part of a letter." in outcome.err


def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(
    shigoto: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("shigoto.toml", "pyproject.toml"):
        os.mkfifo(name)
        outcome = shigoto("stats")
        assert outcome.code == 2
        assert f"{name} is no regular file." in outcome.err
        os.unlink(name)
    os.mkfifo("other.toml")
    monkeypatch.setenv("SHIGOTO_CONFIG", "other.toml")
    assert "other.toml, which $SHIGOTO_CONFIG names, is no regular file." in shigoto("stats").err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_is_there_even_where_the_file_has_a_mistake(shigoto: Command, name: str) -> None:
    write("[worker]\nthreads = 0")

    assert shigoto(name, "--help").code == 0


def test_a_mistake_in_a_variable_is_told_with_its_name(
    shigoto: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text, message in (
        ("SHIGOTO_THREADS", "two", "Invalid value for $SHIGOTO_THREADS: 'two' is not a valid integer"),
        ("SHIGOTO_POLL", "0", "Invalid value for $SHIGOTO_POLL: 0.0 is not in the range"),
        ("SHIGOTO_DRAIN", "perhaps", "Invalid value for $SHIGOTO_DRAIN: 'perhaps' is not a valid boolean"),
        ("SHIGOTO_LOG_LEVEL", "loud", "Invalid value for $SHIGOTO_LOG_LEVEL: 'loud' is not one of"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, text)
            outcome = shigoto("worker")
            assert (outcome.code, outcome.out) == (2, "")
            assert message in outcome.err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("variable", "key", "value", "message"),
    [
        ("SHIGOTO_PROCESSES", "processes", "abc", "Invalid value for $SHIGOTO_PROCESSES: 'abc' is not"),
        ("SHIGOTO_LEASE", "lease", "0", "Invalid value for $SHIGOTO_LEASE: 0.0 is not in the range"),
        ("SHIGOTO_QUEUES", "queues", ",", "Invalid value for $SHIGOTO_QUEUES: ',' names no queue."),
        (
            "WORKER_COUNT",
            "processes",
            "many",
            "WORKER_COUNT must be a whole number from 1 to 1000, not 'many'.",
        ),
    ],
)
def test_config_shows_a_mistake_in_a_variable_beside_all_the_rest(
    shigoto: Command, monkeypatch: pytest.MonkeyPatch, variable: str, key: str, value: str, message: str
) -> None:
    write("[worker]\nthreads = 2\n")
    monkeypatch.setenv(variable, value)

    outcome = shigoto("config", "--origin")

    assert outcome.code == 2
    assert outcome.err.startswith(f"Error: {message}")
    assert "Usage:" not in outcome.err
    rows = {line.split()[0]: line.split()[1:] for line in outcome.lines}
    assert rows[f"worker.{key}"] == [value, f"${variable}"]
    assert rows["worker.threads"] == ["2", "shigoto.toml:", "worker.threads"]
    told_to_programs = shigoto("config", "--json")
    assert told_to_programs.code == 2
    found = told_to_programs.json["settings"]
    assert told(found, f"worker.{key}") == (None, "variable", variable)
    assert message in found[f"worker.{key}"]["error"]
    assert "error" not in found["worker.threads"]


@pytest.mark.parametrize(
    ("option", "least", "most", "beyond"),
    [
        ("concurrency", 1, 10_000, (0, 10_001)),
        ("threads", 1, 10_000, (0, 10_001)),
        ("children", 0, 10_000, (-1, 10_001)),
        ("max_jobs", 1, 10**12, (0, 10**12 + 1)),
        ("lease", 1.0, 86_400.0, (0.9, 86_401.0, float("nan"))),
        ("poll", 0.010, 86_400.0, (0.009, 86_401.0, float("nan"))),
        ("stop_timeout", 0.0, 86_400.0, (-0.1, 86_401.0, float("nan"))),
    ],
)
def test_an_option_takes_what_a_worker_takes_and_nothing_else(
    option: str, least: Any, most: Any, beyond: tuple[Any, ...]
) -> None:
    app = Shigoto("memory:")
    kind = worker_options()[option].type

    for value in (least, most):
        assert kind.convert(str(value), None, None) == value
        Worker(app, **{option: value})
    for value in beyond:
        with pytest.raises(click.BadParameter):
            kind.convert(str(value), None, None)
        with pytest.raises(OptionInvalid):
            Worker(app, **{option: value})


# What is shown


def test_config_shows_values_and_where_they_come_from(
    shigoto: Command, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotCheck
) -> None:
    write('url = "jobs.db"\n[worker]\nqueues = "mail"\n')
    monkeypatch.setenv("SHIGOTO_POLL", "2")

    pages = {
        "Values": session(shigoto, "shigoto config"),
        "Values, and where they come from": session(shigoto, "shigoto config --origin"),
    }

    snapshot("config", pages)


def test_a_misspelt_variable_gets_a_warning(shigoto: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIGOTO_CONCURENCY", "3")
    monkeypatch.setenv("SHIGOTO_OF_SOMEBODY_ELSE", "3")

    assert shigoto("config").err == (
        "Warning: the variable SHIGOTO_CONCURENCY is no setting. Did you mean SHIGOTO_CONCURRENCY?\n"
    )


def test_an_app_that_cannot_be_loaded_does_not_hide_the_rest(shigoto: Command) -> None:
    write('app = "no_such_shop"\n')

    outcome = shigoto("config", "--origin")

    assert outcome.code == 0
    assert outcome.err.startswith(
        "Warning: the app's own store is not known. 'no_such_shop' cannot be loaded"
    )
    assert "no_such_shop" in outcome.out


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("sqlite:///jobs.db", "sqlite:///jobs.db"),
        ("data/a:b@c.db", "data/a:b@c.db"),
        ("postgresql://ada:secret@host/jobs", "postgresql://ada:***@host/jobs"),
        ("postgresql://ada:a/s@c:r#t@host:5/jobs", "postgresql://ada:***@host:5/jobs"),
        ("redis://:secret@host", "redis://:***@host"),
        ("postgresql://ada@host/jobs", "postgresql://ada@host/jobs"),
        ("postgresql://host/jobs?user=a&password=secret", "postgresql://host/jobs?user=a&password=***"),
        ("x://host?sslPassword=secret&auth_token=secret&n=1", "x://host?sslPassword=***&auth_token=***&n=1"),
        ("x://host?pwd=secret&key=secret&n=1", "x://host?pwd=***&key=***&n=1"),
        ("x://host?api_key=secret&Passwd=secret", "x://host?api_key=***&Passwd=***"),
        ("x://host?credentials=secret&auth=secret", "x://host?credentials=***&auth=***"),
    ],
)
def test_a_password_in_an_address_is_not_shown(shigoto: Command, address: str, shown: str) -> None:
    assert without_secrets(address) == shown
    for words in (("config",), ("config", "--origin"), ("config", "--json")):
        outcome = shigoto("--url", address, *words)
        assert shown in outcome.out
        assert "secret" not in outcome.out + outcome.err


# Help


def test_help_tells_the_exit_codes(shigoto: Command) -> None:
    lines = shigoto("--help").lines

    codes = lines[lines.index("Exit codes:") + 1 :]
    assert [line.split()[0] for line in codes] == ["0", "1", "2", "130"]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_examples_of_a_command_can_be_written_so(
    shigoto: Command, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("jobs.jsonl", "cert.pem", "key.pem"):  # which some of them read
        (tmp_path / file).touch()
    examples = [line for line in shigoto(name, "--help").lines if line.startswith("shigoto ")]

    for example in examples:
        _, *words = shlex.split(re.split(r" {3,}| [>|] ", example)[0])
        place = next(place for place, word in enumerate(words) if word in cli.COMMANDS)
        with cli.program.make_context("shigoto", words[: place + 1]) as ctx:
            chosen = cli.program.get_command(ctx, words[place])
            assert chosen is not None
            chosen.make_context(words[place], words[place + 1 :], parent=ctx)
    assert examples or name not in ("worker", "config", "tasks", "completion", "migrate")
