"""How another process finds the same app: by the name under which it can be imported there."""

import os
import sys
from contextlib import suppress

from msgspec import Struct, structs

from shigoto.app import Shigoto, load_app, told_in_one_line
from shigoto.model.errors import DeclarationError, Unsupported

NOT_IMPORTABLE = frozenset({"__main__", "__mp_main__"})


class Source(Struct, frozen=True, kw_only=True):
    """Where the app is: `reference` is module:attr, `url` its store if not the app's own, `path` where to look for
    modules, and `modules` those that declare tasks of the app, in case it does not import them by itself. It is
    imported in `folder`, or wherever the process happens to be."""

    reference: str
    url: str | None = None
    path: tuple[bytes, ...] = ()
    modules: tuple[str, ...] = ()
    folder: bytes | None = None

    @classmethod
    def of(cls, app: Shigoto) -> "Source | None":
        """The source of an app that stands in a module, under whatever name; None if it stands in none."""
        reference = _reference(app)
        return None if reference is None else cls(reference=reference, url=app.url, path=here())

    def with_modules_of(self, app: Shigoto) -> "Source":
        """The same with all modules that declare tasks of this app."""
        modules = {task.fn.__module__: None for task in app.tasks.values()}
        return structs.replace(self, modules=tuple(name for name in modules if name not in NOT_IMPORTABLE))

    def settled(self, app: Shigoto) -> "Source":
        """The same with the very store that this app uses, and the folder we are in if none was named.

        A handler may go to another folder, and then the app's own address may mean another store.
        """
        return structs.replace(self, url=app.engine.address, folder=self.folder or folder_here())

    def load(self) -> Shigoto:
        """The app, with its tasks checked. Raises DeclarationError."""
        if self.path:
            sys.path[:] = [os.fsdecode(entry) for entry in self.path]
        app = load_app(self.reference)
        if self.url is not None and app.url != self.url:
            _choose(app, self.url)
        for module in self.modules:
            with told_in_one_line(module):
                __import__(module)
        with told_in_one_line(self.reference):
            app.check()
        return app


def here() -> tuple[bytes, ...]:
    """Where this process looks for modules."""
    return tuple(os.fsencode(entry or os.getcwd()) for entry in sys.path)


def folder_here() -> bytes | None:
    """The folder we are in; None if somebody has removed it."""
    with suppress(OSError):
        return os.getcwdb()
    return None


def _choose(app: Shigoto, url: str) -> None:
    """Use this store. An app that has opened one by itself, in its module, may only have opened this one."""
    try:
        app.url = url
    except DeclarationError:
        with suppress(Unsupported):
            if app.engine.address == url:
                return
        raise


def _reference(app: Shigoto) -> str | None:
    for name, module in list(sys.modules.items()):
        if name not in NOT_IMPORTABLE:
            for attribute, value in list(getattr(module, "__dict__", {}).items()):
                if value is app:
                    return f"{name}:{attribute}"
    return None
