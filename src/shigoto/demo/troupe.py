"""Worker processes that never outlive whoever started them.

Each holds the reading end of a pipe whose writing end is here, and stops when the pipe ends
(`--stop-on-eof`). So they stop even if this process is killed and can tell them nothing.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

STOPS_WITHIN = 10.0  # seconds from the first signal to the second
HURRIES_WITHIN = 0.3  # the same, when something went wrong or somebody is in a hurry
ENDS_WITHIN = 3.0  # seconds from the second signal to the last resort


class Troupe:
    """Several `shigoto worker` processes on one store, from `__enter__` to `__exit__`."""

    def __init__(self, app: str, url: str, *, count: int, folder: Path, options: Sequence[str] = ()) -> None:
        self._command = [sys.executable, "-m", "shigoto", "--app", app, "--url", url, "worker"]
        self._command += ["--stop-on-eof", *options]
        self._logs = [folder / f"worker-{number}.log" for number in range(1, count + 1)]
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Troupe":
        with ExitStack() as in_case:
            in_case.callback(self.stop)
            for log in self._logs:
                with log.open("wb") as words:
                    self._processes.append(self._start(words.fileno()))
            in_case.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(HURRIES_WITHIN if kind else STOPS_WITHIN)

    @property
    def alive(self) -> int:
        """How many are still running."""
        return sum(process.poll() is None for process in self._processes)

    @property
    def ended_well(self) -> bool:
        """Whether all have ended, and none of them by an error."""
        return all(process.poll() == 0 for process in self._processes)

    def last_words(self) -> list[str]:
        """The last lines of the logs of those that did not end well."""
        lines: list[str] = []
        for process, log in zip(self._processes, self._logs, strict=False):
            if process.poll():
                lines.append(f"A worker ended with exit code {process.returncode}:")
                lines += log.read_text("utf-8", "replace").splitlines()[-10:]
        return lines

    def stop(self, patience: float = HURRIES_WITHIN) -> None:
        """Ask all to stop, again after some patience, and then end them. Stopping twice is fine."""
        try:
            for seconds in (patience, ENDS_WITHIN):
                for process in self._processes:
                    process.terminate()
                if self._gone_within(seconds):
                    break
        finally:
            for process in self._processes:
                process.kill()
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()

    def _start(self, log: int) -> subprocess.Popen[bytes]:
        # A session of its own: a Ctrl-C at the terminal is for us, and we tell the workers.
        return subprocess.Popen(
            self._command,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def _gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        try:
            for process in self._processes:
                process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True


def _environment() -> dict[str, str]:
    """Ours without settings, be they variables or a file here: they are meant for other workers."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SHIGOTO_")}
    return {**plain, "SHIGOTO_CONFIG": os.devnull}
