"""Shell completion, asked as a shell asks: a real bash, with and without a terminal."""

import os
import pty
import re
import select
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest

from shigoto import cli
from shigoto.cli.completion import SHELLS
from shigoto.filters import StateName
from tests.unit.commands import Command, Store, command

SHOP = """
import os

from shigoto import Shigoto

print("an app may print")
os.system("echo and start what prints")
app = Shigoto("sqlite:///shop.db")

@app.task
def send_letter(to: str) -> None: ...

@app.task
def send_parcel(to: str) -> None: ...
"""
ASK = """
source ./script
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 COMP_KEY=9
read -ra COMP_WORDS <<< "$1"
last=${1##*[[:space:]:=]}
compopt() { echo "option $*"; }
_shigoto_completion shigoto "$last" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with an app, and a `shigoto` on the path."""
    for name in list(os.environ):
        if name.startswith(("SHIGOTO_", "_SHIGOTO")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)
    program = tmp_path / "bin" / "shigoto"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m shigoto "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.fixture
def shigoto(folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return command(capsys)


def suggested(line: str) -> list[str]:
    """What bash would suggest after a line."""
    done = subprocess.run(
        ["bash", "--norc", "-c", f"[ -e script ] || shigoto completion bash > script\n{ASK}", "bash", line],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def asked(line: str) -> list[str]:
    """What the program answers to the script of bash: kind,value."""
    done = subprocess.run(
        [sys.executable, "-m", "shigoto"],
        env={**os.environ, "_SHIGOTO_COMPLETE": "bash_complete", "_SHIGOTO_LINE": line},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


# In a real bash


@needs_bash
def test_bash_completes_commands_options_states_and_filters(folder: Path) -> None:
    assert suggested("shigoto wor") == ["worker", "workers"]
    assert suggested("shigoto --a") == ["--app"]
    assert suggested("shigoto worker --log-l") == ["--log-level"]
    assert suggested("shigoto worker --log-level w") == ["warning"]
    # Bash replaces only what stands after the colon.
    assert suggested("shigoto list state:fa") == ["failed"]
    assert suggested("shigoto list sta") == ["option -o default", "option -o nospace", "state:"]
    assert suggested("shigoto list worker") == ["option -o default", "option -o nospace", "worker:"]


@needs_bash
def test_tab_in_a_terminal_completes_a_word(folder: Path) -> None:
    screen = typed("shigoto list state:fa\t", until=r"state:failed")

    assert "state:failed" in screen


@needs_bash
def test_tab_in_a_terminal_completes_a_file_where_a_store_may_stand(folder: Path) -> None:
    (folder / "wonderful.db").touch()

    assert "stats wonderful.db" in typed("shigoto stats wond\t", until=r"stats wonderful\.db")


def typed(keys: str, *, until: str) -> str:
    """What a terminal shows after somebody has typed into a bash that knows the script."""
    terminal, inner = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        env={**os.environ, "PS1": "$ ", "TERM": "dumb"},
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
    )
    os.close(inner)
    shown = ""
    try:
        os.write(terminal, b'eval "$(shigoto completion bash)"; echo rea""dy\n')
        shown = read_until(terminal, shown, r"\bready")
        os.write(terminal, keys.encode())
        return read_until(terminal, shown, until)
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)


def read_until(terminal: int, shown: str, pattern: str) -> str:
    deadline = time.monotonic() + 30
    while not re.search(pattern, shown):
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return shown


# What is suggested


def test_commands_are_suggested_without_importing_them(folder: Path) -> None:
    script = (
        "import os, sys; os.environ |= {'_SHIGOTO_COMPLETE': 'bash_complete', '_SHIGOTO_LINE': 'shigoto '};"
        " from shigoto.cli import program; from shigoto.cli.completion import answer; answer(program);"
        " print([name for name in sys.modules if name.startswith('shigoto.cli.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )

    *names, imported = done.stdout.splitlines()
    assert names == [f"plain,{name}" for name in cli.COMMANDS]
    assert imported == "['shigoto.cli.settings', 'shigoto.cli.target', 'shigoto.cli.completion']"


def test_the_tasks_of_the_app_are_suggested_and_nothing_that_it_prints(folder: Path) -> None:
    assert asked("shigoto --app shop enqueue send_") == [
        "plain,send_letter",
        "plain,send_parcel",
        "file,send_",
    ]
    assert asked("shigoto enqueue --app shop send_l")[0] == "plain,send_letter"
    assert asked("shigoto enqueue user")[0] == "plain,user_created"
    assert asked("shigoto enqueue jobs.db data_e") == ["plain,data_export"]
    assert asked("shigoto tasks data_e") == ["plain,data_export"]
    assert asked("shigoto list task:email") == ["plain,task:email_notification"]
    assert asked("shigoto enqueue user_created ") == []


def test_an_app_is_imported_only_if_whoever_presses_the_key_has_named_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's folder must not run code only because a name in it was to be completed."""
    (folder / "shop.py").write_text(f"open('imported', 'w')\n{SHOP}")
    (folder / "shigoto.toml").write_text('app = "shop"\n')

    for line in ("tasks send_", "enqueue send_", "list task:", "list queue:", "worker --queues ", "pause "):
        assert [each for each in asked(f"shigoto {line}") if each.startswith("plain")] == []
    assert not (folder / "imported").exists()
    monkeypatch.setenv("SHIGOTO_APP", "shop")
    assert asked("shigoto tasks send_") == ["plain,send_letter", "plain,send_parcel"]
    assert (folder / "imported").exists()


def test_tasks_of_an_app_that_is_not_imported_are_those_of_the_workers(folder: Path) -> None:
    store = Store()
    store.announce(tasks=("send_letter", "sort"))
    store.enqueue(queue="mail")
    store.engine.close()
    (folder / "shop.py").write_text("open('imported', 'w')\n")
    (folder / "shigoto.toml").write_text('app = "shop"\nurl = "jobs.db"\n')

    assert asked("shigoto tasks s") == ["plain,send_letter", "plain,sort"]
    assert asked("shigoto list jobs.db task:se") == ["plain,task:send_letter"]
    assert asked("shigoto list queue:") == ["plain,queue:mail"]
    assert not (folder / "imported").exists()


def test_states_kinds_and_qualifiers_are_suggested(folder: Path) -> None:
    states = [f"plain,{name}" for name in get_args(StateName)]

    first = asked("shigoto list ")

    assert first[: len(states)] == states
    assert {"plain,state:", "plain,queue:", "plain,task:", "plain,kind:", "plain,args."} < set(first)
    assert asked("shigoto list state:c") == ["plain,state:completed", "plain,state:cancelled"]
    assert asked("shigoto redrive kind:crash") == ["plain,kind:crash_loop"]
    assert asked("shigoto clear jobs.db fail") == ["plain,failed"]
    assert "plain,since:1h" in asked("shigoto cancel since:")
    assert asked("shigoto list tag:") == []


def test_a_file_is_suggested_only_as_the_first_of_several_words(folder: Path) -> None:
    for words in ("schedules pause", "schedules preview", "show", "rerun", "token revoke"):
        assert asked(f"shigoto {words} ") == ["file,"]
        assert asked(f"shigoto {words} jobs.db n") == []


def test_queues_of_the_store_are_suggested(folder: Path) -> None:
    store = Store()
    store.enqueue(queue="mail")
    store.enqueue(queue="reports")
    store.engine.close()

    assert asked("shigoto list jobs.db queue:") == ["plain,queue:mail", "plain,queue:reports"]
    assert asked("shigoto list jobs.db worker:") == []
    assert asked("shigoto --url jobs.db pause r")[0] == "plain,reports"
    assert asked("shigoto --url jobs.db worker --queues mail,r") == ["plain,mail,reports"]
    assert asked("shigoto --url jobs.db list --queue m") == ["plain,mail"]
    (folder / "shigoto.toml").write_text('url = "jobs.db"\n')
    assert asked("shigoto list queue:m") == ["plain,queue:mail"]


@pytest.mark.parametrize(
    "line",
    [
        "shigoto list queue:",
        "shigoto list absent.db worker:",
        "shigoto --url postgresql://host/db list queue:",
        "shigoto --app no_such_module enqueue s",
        "shigoto --app broken enqueue s",
        "shigoto nonsense ",
        "shigoto list 'unfinished",
        "",
    ],
)
def test_what_cannot_be_found_out_is_not_suggested_and_nothing_is_created(folder: Path, line: str) -> None:
    (folder / "broken.py").write_text("raise ValueError('no')\n")
    before = sorted(path.name for path in folder.iterdir())

    answered = asked(line)

    assert not [item for item in answered if not item.startswith("file,")] or not line
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == before


def test_a_server_that_does_not_answer_is_given_up_soon(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes a call, and never says a word
        port = silent.getsockname()[1]
        began = time.monotonic()

        assert asked(f"shigoto --url postgresql://127.0.0.1:{port}/db list queue:") == []
        assert time.monotonic() - began < 5  # with the start of Python; libpq alone would wait ten


def test_a_file_that_somebody_keeps_for_himself_is_given_up_soon(folder: Path) -> None:
    store = Store()
    store.enqueue(queue="mail")
    store.engine.close()
    with closing(sqlite3.connect("jobs.db", isolation_level=None)) as selfish:
        selfish.execute("PRAGMA locking_mode = EXCLUSIVE")
        selfish.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()

        assert asked("shigoto list jobs.db queue:") == []
        assert time.monotonic() - began < 5


def test_a_settings_file_with_a_mistake_keeps_only_silent_what_needs_it(folder: Path) -> None:
    (folder / "shigoto.toml").write_text("url = 3")

    assert asked("shigoto work") == ["plain,worker", "plain,workers"]
    assert asked("shigoto tasks ") == []


# The scripts


def test_every_script_says_how_to_install_it(shigoto: Command) -> None:
    for shell in SHELLS:
        script = shigoto("completion", shell).out
        assert f"shigoto completion {shell}" in script
        assert f"{shell}_complete" in script
        assert "# Set SHIGOTO_APP or give --app for tasks and queues of your app;" in script
    words = " ".join(shigoto("completion", "--help").out.split())
    assert "For tasks and queues of your app, set SHIGOTO_APP or give --app:" in words
    assert shigoto("completion", "zsh").out.startswith("#compdef shigoto\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_is_one(shigoto: Command, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    Path("script").write_text(shigoto("completion", shell).out)

    done = subprocess.run([shell, "-n", "script"], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("shell", "line"), [("zsh", "shigoto list state:fa"), ("fish", "shigoto list state:fa")]
)
def test_other_shells_get_their_answers_too(folder: Path, shell: str, line: str) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": "2" if shell == "zsh" else "state:fa"}
    done = subprocess.run(
        [sys.executable, "-m", "shigoto"],
        env={**os.environ, **words, "_SHIGOTO_COMPLETE": f"{shell}_complete"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout.strip() == ("plain\nstate:failed\n_" if shell == "zsh" else "plain,state:failed")


def test_the_shell_is_the_one_in_use_unless_it_is_named(
    shigoto: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert shigoto("completion").out == shigoto("completion", "fish").out

    monkeypatch.setenv("SHELL", "/bin/csh")
    outcome = shigoto("completion")
    assert outcome.code == 2
    assert "Which shell? Write one of bash, zsh, fish." in outcome.err
