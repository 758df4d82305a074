"""From the words `module:attr` to the app they mean, with errors that name the place."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from shigoto.app import Shigoto
from shigoto.model.errors import DeclarationError, OptionInvalid, ShigotoError, nearest

OWN = os.path.dirname(__file__)
LIBRARY = os.path.dirname(os.__file__)
INSTALLED = ("site-packages", "dist-packages")  # where others put their code, inside of the library


def load_app(reference: str) -> Shigoto:
    """The app of `module:attr`; `attr` is `app` if left out, and may be a function that makes the app."""
    module, _, attribute = reference.partition(":")
    if not _is_dotted(module) or _is_file(module):
        hint = _as_module(module, attribute)
        raise DeclarationError(
            f"An app is named module:attr, such as shop.tasks:app, not {reference!r}{hint}."
        )
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


def _is_dotted(module: str) -> bool:
    return all(part.isidentifier() for part in module.split("."))


def _is_file(module: str) -> bool:
    """Whether the name of a file stands where a module belongs; a module may be called `py`, too."""
    return module.endswith(".py") and os.path.isfile(module)


def _as_module(module: str, attribute: str) -> str:
    """What to write instead of the path of a file."""
    dotted = module.removesuffix(".py").removeprefix("./").replace("/", ".")
    is_path = module.endswith(".py") and _is_dotted(dotted)
    return f": write {dotted}:{attribute or 'app'}" if is_path else ""


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
    except OptionInvalid as error:
        raise DeclarationError(f"{reference!r} cannot be loaded: {error} ({_place(error)}).") from error
    except ShigotoError:
        raise
    except SystemExit as error:
        # Let through, it would end the command as a success that has done nothing.
        said = "" if error.code is None else repr(error.code)
        raise DeclarationError(
            f"{reference!r} cannot be loaded: importing it ended the program (sys.exit({said}) at {_place(error)});"
            " put that under `if __name__ == '__main__'`."
        ) from error
    except Exception as error:
        raise DeclarationError(
            f"{reference!r} cannot be loaded: {type(error).__name__}: {error} ({_place(error)})."
        ) from error


def _place(error: Exception | SystemExit) -> str:
    """Where the user's code led to the error; for a module that is not there, where it was looked for."""
    if isinstance(error, ModuleNotFoundError):
        here = _current_directory()
        return f"looked for {'' if here is None else f'in {here} and '}among the installed ones"
    trace = error.__traceback__
    places: list[tuple[str, int]] = []
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    theirs = [place for place in places if not _is_library(place[0])]
    file, line = (theirs or places)[-1]
    return f"{file}, line {line}"


def _is_library(file: str) -> bool:
    """Whether a file is one of ours or of Python's, which says little to whoever has made a mistake elsewhere."""
    if file.startswith("<frozen"):
        return True
    is_python = file.startswith(LIBRARY + os.sep) and not any(name in file for name in INSTALLED)
    return is_python or file.startswith(OWN + os.sep)


def _attribute(module: ModuleType, path: str) -> object:
    value: object = module
    for name in path.split("."):
        if not hasattr(value, name):
            apps = [key for key, found in vars(module).items() if isinstance(found, Shigoto)]
            hint = nearest(name, apps) or (f" It has {', '.join(apps)}." if apps else "")
            raise DeclarationError(f"{module.__name__!r} has no {name!r}.{hint}")
        value = getattr(value, name)
    return value
