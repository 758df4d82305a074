"""A page of Markdown, and a reader who does all that it says: writes the files, runs the code, types the commands.

What a fenced block is for is said by its kind, and nothing is passed over in silence:

    python            a first line `# name.py` makes it a file, `# name.py, further down` a part to be appended; any
                      other is run, in one process per page, in the order of the page
    output            what the python block before it has printed
    console           commands after `$ ` and, below each, what it prints; `...` stands for what varies
    sh                commands that succeed; their output is not shown
    toml, ini, json   must be well-formed; a first line `# name.toml` makes it a file as well
    text              anything else
    {.python .unrun}  code that needs what is not here: it must compile

Commands that look at the store are typed again until they show what the page shows: readers are slower than tests. A
worker, a scheduler or a server is left running until the end of the page, and then has to stop in good order.
"""

import configparser
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import TracebackType

import dev
import shigoto

PATIENCE = 30.0
FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>.*)")
FILE = re.compile(r"# (?P<name>[\w./-]+\.(?:py|toml|ini))(?P<more>, further down)?")
EXIT_CODE = re.compile(r"# exit code (\d+)")
LOOKS = {"stats", "list", "show", "workers", "queues", "tasks", "schedules"}

# What is not typed, and why. A command that is not named here is run.
NOT_TYPED = {
    r"python3 dev\.py (\w+)": "it is how these tests are run themselves; that the command exists is checked",
    r"python3 -m (venv|pip) .*": "it fetches from the network",
    r"\. .*/activate": "it is for the reader's own shell",
    r"sudo .*": "it is for the operator of a machine",
    r"(systemctl|systemd-analyze|journalctl|docker|podman) .*": "it is for the operator of a machine",
}

SESSION = """
import contextlib, io, json, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    order = json.loads(line)
    for module in order["changed"]:
        sys.modules.pop(module, None)
    printed, error = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(order["code"], order["place"], "exec"), names)
        except BaseException:
            error = traceback.format_exc()
    sys.stdout.write(json.dumps({"printed": printed.getvalue(), "error": error}) + "\\n")
    sys.stdout.flush()
"""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; `place` is where its text begins, for messages."""

    place: str
    info: str
    text: str

    @property
    def file(self) -> "re.Match[str] | None":
        """The name of the file that it is, if it is one."""
        return FILE.fullmatch(self.text.split("\n", 1)[0])


def blocks_of(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page. A fence that is indented or never closed is an error of the page."""
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), 1))
    for number, line in lines:
        fence = FENCE.fullmatch(line)
        if fence is None:
            continue
        place = f"{page.name}:{number}"
        assert not fence["indent"], f"{place}: fences begin at the start of a line"
        text = []
        for _, line in lines:
            if line == fence["fence"]:
                break
            text.append(line)
        else:
            raise AssertionError(f"{place}: this block has no end")
        yield Block(place, fence["info"].strip(), "".join(f"{line}\n" for line in text))


def without_comments(block: Block) -> str:
    """The block as it is in every language: comments are for people."""
    lines = (re.sub(r"(^|\s)#( .*)?$", "", line).rstrip() for line in block.text.splitlines())
    return "\n".join(line for line in lines if line)


class Reader:
    """Follows a page block by block, in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "reader"
        self.folder.mkdir()
        self._environment = _environment(_programs(folder / "bin"))
        self._port = _free_port()
        self._changed: list[str] = []
        self._printed: str | None = None
        self._session: subprocess.Popen[str] | None = None
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def __enter__(self) -> "Reader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._stop()
        finally:
            for _, process in self._running:
                process.kill()
                process.wait()
            if self._session is not None:
                self._session.kill()
                self._session.communicate()

    def _stop(self) -> None:
        for command, process in self._running:
            process.send_signal(signal.SIGTERM)
            # uvicorn ends itself by the signal that it was sent, when it has closed everything
            fine = (0, -signal.SIGTERM) if command.startswith("uvicorn") else (0,)
            assert process.wait(PATIENCE) in fine, f"{command!r} did not stop in good order"

    def follow(self, block: Block) -> None:
        """Do what the block says. Pages are read side by side, so that a free port stands in for 8000 and 8710."""
        block = replace(
            block, text=re.sub(r"(--port |127\.0\.0\.1:)(8000|8710)\b", rf"\g<1>{self._port}", block.text)
        )
        printed, self._printed = self._printed, None
        match block.info:
            case "python" if block.file is None:
                self._printed = self._run(block)
            case "python":
                compile(block.text, block.place, "exec")
                self._write(block)
            case "output":
                assert printed is not None, (
                    f"{block.place}: there is no python block right before this output"
                )
                expect(block.place, block.text, printed)
            case "console":
                for command, shown in _typed(block):
                    self._type(block.place, command, shown)
            case "sh":
                for command in _lines(block.text):
                    self._type(block.place, command, None)
            case "toml" | "ini" | "json":
                _parse(block)
                if block.file is not None:
                    self._write(block)
            case "{.python .unrun}":
                compile(block.text, block.place, "exec")
            case "text":
                pass
            case _:
                raise AssertionError(
                    f"{block.place}: nobody knows what to do with a block of kind {block.info!r}"
                )

    def _write(self, block: Block) -> None:
        assert block.file is not None
        path = self.folder / block.file["name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if block.file["more"] else "w", encoding="utf-8") as file:
            file.write(f"\n\n{block.text}" if block.file["more"] else block.text)
        module = path.relative_to(self.folder).with_suffix("").as_posix().replace("/", ".")
        self._changed.append(module.removesuffix(".__init__"))

    def _run(self, block: Block) -> str:
        """What the code prints."""
        if self._session is None:
            self._session = subprocess.Popen(
                [sys.executable, "-c", SESSION],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._session.stdin is not None
        assert self._session.stdout is not None
        order = {"code": block.text, "place": block.place, "changed": self._changed}
        self._session.stdin.write(json.dumps(order) + "\n")
        self._session.stdin.flush()
        self._changed = []
        answer = json.loads(self._session.stdout.readline())
        assert answer["error"] is None, f"{block.place}:\n{answer['error']}"
        return str(answer["printed"])

    def _type(self, place: str, command: str, shown: str | None) -> None:
        place = f"{place}: {command}"
        words = shlex.split(command, comments=True)
        if _is_left_out(command):
            return
        if (
            words[0] in ("shigoto", "uvicorn")
            and "--drain" not in words
            and {"worker", "scheduler", "server", "uvicorn"} & set(words)
        ):
            self._start(place, command, shown)
            return
        code = int(match[1]) if (match := EXIT_CODE.search(command)) else 0
        deadline = time.monotonic() + PATIENCE
        while True:
            told = subprocess.run(
                ["sh", "-c", command],
                check=False,
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PATIENCE,
            )
            if not LOOKS & set(words) or shown is None or matches(shown, told.stdout):
                break
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        assert told.returncode == code, f"{place}: exit code {told.returncode}\n{told.stdout}"
        if shown is not None:
            expect(place, shown, told.stdout)

    def _start(self, place: str, command: str, shown: str | None) -> None:
        log = self.folder.parent / f"log{len(self._running)}"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["sh", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self._running.append((command, process))
        deadline = time.monotonic() + PATIENCE
        while shown is not None and not matches(shown, log.read_text(), whole=False):
            assert process.poll() is None, f"{place}: it has ended\n{log.read_text()}"
            if time.monotonic() > deadline:
                expect(place, shown, log.read_text())
            time.sleep(0.05)


def matches(shown: str, printed: str, *, whole: bool = True) -> bool:
    """Whether this was printed, or begins what was, if `...` is anything within a line and, alone, any lines."""
    pattern = ""
    for line in _trimmed(shown):
        if line == "...":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += ".*?".join(re.escape(part.rstrip()) for part in line.split("...")) + r"[ \t]*\n"
    text = "".join(f"{line}\n" for line in _trimmed(printed))
    return re.fullmatch(pattern if whole else f"{pattern}(?:.|\n)*", text) is not None


def expect(place: str, shown: str, printed: str) -> None:
    assert matches(shown, printed), f"{place}: the page shows\n\n{shown}\nand this is printed:\n\n{printed}"


def _trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _lines(text: str) -> Iterator[str]:
    """Commands, one per line; a backslash joins two lines."""
    for line in text.replace("\\\n", "").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.strip()


def _typed(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what is shown below it."""
    parts = re.split(r"^\$ ", block.text.replace("\\\n", ""), flags=re.MULTILINE)
    assert not parts[0].strip(), f"{block.place}: a console block begins with a command, after `$ `"
    for part in parts[1:]:
        command, _, shown = part.partition("\n")
        yield command.strip(), shown


def _is_left_out(command: str) -> bool:
    """Whether the command is one of those that are not typed; what can be known of it is checked."""
    bare = command.partition(" #")[0].strip()
    if match := re.match(r"python3 dev\.py (\w+)", bare):
        assert match[1] in dev.COMMANDS, f"dev.py has no command {match[1]!r}"
    return any(re.fullmatch(pattern, bare) for pattern in NOT_TYPED)


def _parse(block: Block) -> None:
    match block.info:
        case "toml":
            tomllib.loads(block.text)
        case "json":
            json.loads(block.text)
        case _:
            parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
            parser.read_string(block.text, block.place)


def _programs(folder: Path) -> Path:
    """`shigoto`, `python3` and `uvicorn` as this interpreter has them, whether or not it was installed with scripts."""
    folder.mkdir()
    for name, words in {
        "python3": "",
        "shigoto": "-m shigoto",
        "uvicorn": "-m uvicorn",
        "pytest": "-m pytest",
    }.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        program.chmod(0o755)
    return folder


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _environment(programs: Path) -> dict[str, str]:
    """No settings of our own, and the package found where the tests found it."""
    ours = re.compile(r"SHIGOTO_|PYTEST_|WORKER_COUNT$|COLUMNS$|FORCE_COLOR$")
    kept = {name: value for name, value in os.environ.items() if not ours.match(name)}
    if not metadata.entry_points(group="pytest11", name="shigoto"):  # run from the source, and not installed
        kept["PYTEST_PLUGINS"] = "shigoto_pytest"
    kept["PYTEST_ADDOPTS"] = (
        "-p no:schemathesis"  # which readers do not have, and which takes a second to load
    )
    return kept | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(shigoto.__file__).parents[1]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
