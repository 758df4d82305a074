"""Watching for changes of the user's code: for `--reload`.

The files are looked at again and again: half a second is soon enough for people, and asking the system to be told
would need another way on every platform. A new file beside a known one is a change, too: it may be the module that
was missing.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

LOOK_EVERY = 0.5  # seconds

Snapshot = dict[Path, tuple[int, int]]


def own_files(error: BaseException | None = None) -> set[Path]:
    """The files in the working directory and below whose code this process has loaded, or tried to.

    What is installed is left out, even if it is installed there.
    """
    here = Path.cwd()
    installed = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()} - {here, *here.parents}
    paths = {Path(name).absolute() for name in (*_loaded(), *_concerned(error)) if name}
    return {
        path
        for path in paths
        if path.is_relative_to(here) and not any(path.is_relative_to(prefix) for prefix in installed)
    }


def _loaded() -> Iterator[str]:
    for module in list(sys.modules.values()):
        name: object = getattr(module, "__file__", None)
        if isinstance(name, str):
            yield name


def _concerned(error: BaseException | None) -> Iterator[str]:
    """The files that an error passed through, and the one that has no valid syntax."""
    while error is not None:
        if isinstance(error, SyntaxError) and error.filename:
            yield error.filename
        trace = error.__traceback__
        while trace is not None:
            yield trace.tb_frame.f_code.co_filename
            trace = trace.tb_next
        error = error.__cause__ or error.__context__


class Watch:
    """Looks at files and at their neighbours. `changed` is called after a change, once there is no further one."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._files: set[Path] = set()
        self._folders = {Path.cwd()}
        self._seen = self._look()

    def add(self, paths: Iterable[bytes]) -> None:
        """Look at these, too."""
        new = {Path(os.fsdecode(path)) for path in paths} - self._files
        if new:
            self._files |= new
            self._folders |= {path.parent for path in new}
            # As they are now: whoever has loaded them did so a moment ago.
            self._seen = self._look() | self._seen

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if self._look() != self._seen:
                await self._settled()
                self._changed()

    async def _settled(self) -> None:
        """An editor, or a tool that changes branches, may write many files."""
        while (now := self._look()) != self._seen:
            self._seen = now
            await asyncio.sleep(LOOK_EVERY / 5)

    def _look(self) -> Snapshot:
        neighbours = {path for folder in self._folders for path in _modules_in(folder)}
        return {path: stamp for path in self._files | neighbours if (stamp := _stamp(path)) is not None}


def _modules_in(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder) if entry.name.endswith(".py")]
    except OSError:
        return []


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
