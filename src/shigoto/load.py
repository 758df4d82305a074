"""From the words `module:attr` to the app they mean, with errors that name the place."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from shigoto.app import Shigoto
from shigoto.model.errors import DeclarationError, ShigotoError, nearest


def load_app(reference: str) -> Shigoto:
    """The app of `module:attr`; `attr` is `app` if left out, and may be a function that makes the app."""
    module, _, attribute = reference.partition(":")
    if not all(part.isidentifier() for part in module.split(".")):
        raise DeclarationError(f"An app is named module:attr, such as shop.tasks:app, not {reference!r}.")
    here = _current_directory()
    if here is not None and here not in sys.path:
        sys.path.insert(0, here)
    with told_in_one_line(reference):
        value = _attribute(import_module(module), attribute or "app")
        if not isinstance(value, Shigoto) and callable(value):
            value = value()
    if not isinstance(value, Shigoto):
        raise DeclarationError(f"{reference!r} is no Shigoto app: it is of type {type(value).__name__}.")
    return value


def _current_directory() -> str | None:
    """The current directory, unless somebody has removed it."""
    try:
        return os.getcwd()
    except OSError:
        return None


@contextmanager
def told_in_one_line(reference: str) -> Generator[None]:
    """Whatever the user's code raises on import becomes a DeclarationError that names the place."""
    try:
        yield
    except ShigotoError:
        raise
    except Exception as error:
        raise DeclarationError(
            f"{reference!r} cannot be loaded: {type(error).__name__}: {error} ({_place(error)})."
        ) from error


def _place(error: Exception) -> str:
    """Where the error was raised; for a module that is not there, where it was looked for."""
    if isinstance(error, ModuleNotFoundError):
        here = _current_directory()
        return f"looked for {'' if here is None else f'in {here} and '}among the installed ones"
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _attribute(module: ModuleType, path: str) -> object:
    value: object = module
    for name in path.split("."):
        if not hasattr(value, name):
            apps = [key for key, found in vars(module).items() if isinstance(found, Shigoto)]
            hint = nearest(name, apps) or (f" It has {', '.join(apps)}." if apps else "")
            raise DeclarationError(f"{module.__name__!r} has no {name!r}.{hint}")
        value = getattr(value, name)
    return value
