"""The file that is there while a worker is ready: for `--ready-file`."""

import logging
import os
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger("shigoto.worker")


class ReadyFile:
    """Is not there before `__enter__`, nor after `__exit__`: one that a killed supervisor has left would be a lie."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def __enter__(self) -> "ReadyFile":
        self.hide()
        return self

    def __exit__(self, *_: object) -> None:
        self.hide()

    def show(self) -> None:
        """Let it be there, with our process id in it."""
        if self._path is not None:
            try:
                self._path.write_text(f"{os.getpid()}\n")
            except OSError:
                logger.exception("The ready file cannot be written; the worker goes on without it")

    def hide(self) -> None:
        """Let it not be there."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
