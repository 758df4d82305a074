"""Hostile input through the command line: many commands, one after the other, in a process of their own.

    python -m faults.tools.commands MODULE URL COUNT SEED

Each is refused with exit code 1 or 2 and words that a terminal can show, or done. What came of them is printed as JSON.
"""

import io
import os
import re
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random

from msgspec import json

from faults.evidence import audit
from faults.evidence.records import Pen, What
from faults.tools.doors import Tally
from faults.tools.nasty import Nasty
from shigoto import cli

# A terminal does what these say, or shows something else than what is there. Line breaks and tabs are what we print.
COMMANDS_TO_TERMINALS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
ID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
STORED = re.compile(
    rf"(?:^#\d+ \(|^{{\"id\":\")({ID})(?=\) inserted|\",\"number\":\d+,\"status\":\"inserted)"
)
TASKS = ("echo", "fail", "typed", "never_heard_of")
NUMBER = re.compile(r"#?(\d{1,18})")


class CommandDoor:
    """Makes up commands, runs them within this process, and looks at what they print."""

    def __init__(self, app: str, url: str, nasty: Nasty, pen: Pen) -> None:
        self.tally = Tally()
        self._pen = pen
        self._app = app
        self._url = url
        self._nasty = nasty

    def knock(self) -> None:
        """One command."""
        words = self.words()
        self._tell_of(words)
        out, err = stream(), stream()
        try:
            with redirect_stdout(out), redirect_stderr(err):
                code = cli.execute(words)
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            self.tally.crashed(
                f"{shortened(words)}: {type(error).__name__}: {error} ({place.filename}:{place.lineno})"
            )
            return
        wrong = judged(code, said(out), said(err))
        if wrong:
            self.tally.crashed(f"{shortened(words)}: {wrong}")
        elif code:
            self.tally.refused += 1
        else:
            self.tally.accepted += 1
            acknowledge(self._pen, said(out))

    def _tell_of(self, words: list[str]) -> None:
        """Write down which jobs a command may cancel or retry."""
        deeds: tuple[What, ...] = ("cancel", "retry")
        for deed in (deed for deed in deeds if deed in words):
            for number in filter(None, map(NUMBER.fullmatch, words)):
                if id := audit.id_of(Path(self._url.removeprefix("sqlite:///")), int(number[1])):
                    self._pen.write(deed, job=id)

    def words(self) -> list[str]:
        """A command. The store is always named, so that no word can be taken for another."""
        nasty, random = self._nasty, self._nasty.random
        kind = random.choice(
            ("enqueue", "enqueue", "enqueue", "list", "list", "show", "cancel", "retry", "clear")
        )
        words = ["--url", self._url] if kind != "enqueue" else ["--url", self._url, "--app", self._app]
        words.append(kind)
        if kind == "enqueue":
            words += self._enqueue()
        elif kind == "list":
            words += self._list()
        elif kind == "clear":
            words += ["--dry-run", *(nasty.text() for _ in range(random.randint(0, 2)))]
        else:
            words += [
                random.choice((nasty.text(), "1", "42", "#7", "9" * 30)) for _ in range(random.randint(0, 2))
            ]
        if random.random() < 0.3:
            words.append("--json")
        if random.random() < 0.05:
            words.insert(random.randrange(len(words) + 1), f"--{nasty.text()[:200]}")
        return [word.replace("\0", "") for word in words]  # no system hands these on

    def _enqueue(self) -> list[str]:
        nasty, random = self._nasty, self._nasty.random
        words = [self._url, nasty.of(*TASKS) if random.random() < 0.2 else random.choice(TASKS)]
        words = [word if isinstance(word, str) else nasty.text() for word in words]
        if random.random() < 0.6:
            words.append(nasty.document()[:100_000])  # a system takes 128 KiB for one word
        for _ in range(random.choice((0, 0, 1, 2))):
            name = random.choice(("value", "number", "names", nasty.text()))
            words += ["--arg", f"{name}={random.choice((nasty.text, nasty.document))()[:100_000]}"]
        options = "--queue --priority --delay --run-at --expires --key --key-mode --retries --tag --tenant"
        for option in nasty.some(options.split(), 2):
            words += [option, random.choice((nasty.text(), "1", "99999999999", "-1", "2030-01-01T00:00:00Z"))]
        if random.random() < 0.3:
            words.append("--allow-unknown")
        return words

    def _list(self) -> list[str]:
        nasty, random = self._nasty, self._nasty.random
        prefixes = "queue: task: tag: key: tenant: worker: kind: error: since: args.value: args.a.b: state:"
        words = [random.choice((*prefixes.split(), "")) + nasty.text() for _ in range(random.randint(0, 2))]
        words += random.choice(([], ["all"], ["failed"], ["completed"], ["pending"]))
        for option in nasty.some(["--queue", "--task", "--tag", "--key", "--tenant", "--kind", "--limit"], 1):
            words += [option, nasty.text()]
        return words


def acknowledge(pen: Pen, out: str) -> None:
    """Write down the job that a command says it has stored."""
    for id in STORED.findall(out):
        pen.write("ok", job=id)


def stream() -> io.TextIOWrapper:
    """What standard output is to a command that was started in the usual way."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace", newline="")


def said(written: io.TextIOWrapper) -> str:
    """All that was printed."""
    written.flush()
    held = written.buffer
    assert isinstance(held, io.BytesIO)
    return held.getvalue().decode()


def judged(code: int, out: str, err: str) -> str:
    """What is wrong with how a command has ended."""
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if "Traceback" in err:
        return f"a traceback: {err[-300:]!r}"
    if code and not (err + out).strip():
        return f"exit code {code} without a word"
    for name, text in (("output", out), ("error", err)):
        if found := COMMANDS_TO_TERMINALS.search(text):
            around = text[max(0, found.start() - 60) : found.end() + 20]
            return f"{found[0]!r} in its {name}: {around!r}"
    return ""


def shortened(words: list[str]) -> str:
    """A command as it can be shown."""
    return " ".join(repr(word[:60]) for word in words)


def main() -> None:
    """Run so many commands, and say what came of them."""
    module, url, count, seed = sys.argv[1:]
    door = CommandDoor(
        f"faults.apps.{module}:app", url, Nasty(Random(seed)), Pen(Path(os.environ["SHIGOTO_LEDGER"]))
    )
    for _ in range(int(count)):
        door.knock()
    sys.stdout.buffer.write(json.encode(door.tally))


if __name__ == "__main__":
    main()
