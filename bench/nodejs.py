"""Runners whose queue is for Node.js: a small program of its own stores and runs the jobs, this one measures.

    node PROGRAM.mjs install     make the tables
    node PROGRAM.mjs work        one worker process, until it is told to stop; it leaves the same notes as probe.py
    node PROGRAM.mjs store       stores jobs as it is told, line by line in JSON: {"do": "calls" | "chunks", "jobs": N,
                                 "warm_up": N, "size": N, "within": SECONDS} is answered by {"seconds": S, "jobs": N},
                                 {"do": "one", "argument": N | null}, {"do": "many", "first": N, "jobs": N} and
                                 {"do": "nothing"} by {}

Loops are made and timed over there, so that nobody pays for the pipe in between; and a job without an argument carries
the moment of its own call.

$BENCH_NODE is the program `node`, $BENCH_NODE_FOLDER where the packages are.
"""

import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from bench.contract import Many, One
from bench.postgres import PostgresRunner
from bench.probe import A_MOMENT

NODE = os.environ.get("BENCH_NODE", "node")
FOLDER = Path(os.environ.get("BENCH_NODE_FOLDER", "."))
PROGRAMS = Path(__file__).parent / "peers" / "nodejs"


class Program:
    """The one that stores jobs."""

    def __init__(self, command: list[str], env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, what: str, **words: Any) -> dict[str, Any]:
        """Tell it something, and wait until that is done."""
        asks, answers = self._process.stdin, self._process.stdout
        assert asks is not None
        assert answers is not None
        asks.write(json.dumps({"do": what, **words}) + "\n")
        asks.flush()
        answer: dict[str, Any] = json.loads(answers.readline() or '{"error": "the program has ended"}')
        if "error" in answer:
            raise SystemExit(str(answer["error"]))
        return answer

    def close(self) -> None:
        """It ends with its input."""
        self._process.communicate()


class OneElsewhere:
    """Its plain call."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def __call__(self, number: int) -> None:
        self._program.ask("one", argument=None if number > A_MOMENT else number)

    def times(self, jobs: int, *, warm_up: int, within: float) -> tuple[float, int]:
        """In a loop over there."""
        answer = self._program.ask("calls", jobs=jobs, warm_up=warm_up, within=within)
        return answer["seconds"], answer["jobs"]


class ManyElsewhere:
    """Its call for many."""

    def __init__(self, program: Program, size: int) -> None:
        self._program, self._size = program, size

    def __call__(self, numbers: list[int]) -> None:
        self._program.ask("many", first=numbers[0], jobs=len(numbers))

    def times(self, jobs: int, *, warm_up: int, within: float) -> tuple[float, int]:
        """In a loop over there."""
        answer = self._program.ask("chunks", jobs=jobs, size=self._size, within=within)
        return answer["seconds"], answer["jobs"]


class NodeRunner(PostgresRunner):
    """One queue for Node.js; its package is one of npm's."""

    program: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.env = {"BENCH_ADDRESS": self.address}

    def command(self, what: str) -> list[str]:
        """The words that start its program."""
        return [NODE, str(PROGRAMS / self.program), what]

    def install(self) -> None:
        """Let it make its tables."""
        subprocess.run(self.command("install"), env={**os.environ, **self.env}, check=True)

    def worker_cmd(self) -> list[str]:
        """Its program."""
        return self.command("work")

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[One, Many]]:
        """Both calls, made by its program."""
        program = Program(self.command("store"), self.env)
        program.ask("nothing")
        yield OneElsewhere(program), ManyElsewhere(program, self.bulk_chunk)
        program.close()

    def version(self) -> str:
        """As the package itself says."""
        path = FOLDER / "node_modules" / self.package / "package.json"
        about: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        return about["version"]
