"""Ends the processes of an experiment that was itself killed.

    python -S -m faults.tools.guardian < the process ids, one in each line

It reads until its input ends, which happens too when whoever writes there dies. After the word `done` there is nothing
left to do; else every process that was named is killed, with its group.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


class Guardian:
    """A guardian process of our own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", str(Path(__file__))], stdin=subprocess.PIPE, start_new_session=True
        )

    def tell(self, word: object) -> None:
        """Name one more process."""
        with suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.write(f"{word}\n".encode())
            self._process.stdin.flush()

    def dismiss(self) -> None:
        """Say that all of them have ended."""
        self.tell("done")
        self._process.communicate()


def main() -> None:
    """Wait for the end."""
    words = sys.stdin.read().split()
    if "done" not in words:
        for word in words:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(int(word), signal.SIGKILL)


if __name__ == "__main__":
    main()
