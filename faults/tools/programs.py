"""Parts of an experiment that need a process of their own: each is a program, whose last line is its outcome."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import json

from faults.experiment import Outcome
from faults.stage import ROOT, SOURCE

NOT_ALLOWED = 77  # how a program ends that finds that it may not do what it is for


def run_program(
    module: str,
    *words: object,
    log: Path,
    seconds: float,
    wrap: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Outcome | None:
    """Run a module of ours with these words, and read the outcome from the end of its log; None if it may not run."""
    path = os.pathsep.join([str(ROOT), str(SOURCE), *filter(None, sys.path)])
    command = [*wrap, sys.executable, "-m", module, *map(str, words)]
    with log.open("wb") as output:
        ended = subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": path} | dict(environment or {}),
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
    if ended.returncode == NOT_ALLOWED:
        return None
    if ended.returncode != 0:
        said = log.read_text(errors="replace")[-3000:]
        raise RuntimeError(f"{module} {words} ended with {ended.returncode}: {said}")
    return json.decode(log.read_bytes().splitlines()[-1], type=Outcome)


def tell(outcome: Outcome) -> None:
    """Hand the outcome to who has started this program."""
    print(json.encode(outcome).decode(), flush=True)
