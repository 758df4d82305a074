"""Settings of the current folder, and where a value comes from: file < environment < flags.

The file is `shigoto.toml`, or the table `[tool.shigoto]` of `pyproject.toml`; where both have settings, the first
wins wholly. `$SHIGOTO_CONFIG` names another file, and the null device none. All of a file is checked before any of
it is used, by the very options of the worker.
"""

import os
import stat
from collections.abc import Mapping
from functools import cached_property
from math import isnan
from typing import Any, Literal, NamedTuple, TypeGuard

import click
from click.core import ParameterSource

from shigoto.model.errors import OptionInvalid, nearest
from shigoto.model.text import without_secrets

FILE, PROJECT = "shigoto.toml", "pyproject.toml"
TABLE = "tool.shigoto"
TOP = ("app", "url", "worker")
PREFIX = "SHIGOTO_"
CONFIG = "SHIGOTO_CONFIG"
HOST = "127.0.0.1"  # nobody else, unless it is said
MOST_PORT = 65_535


class SettingsError(click.ClickException):
    """A settings file that cannot be used, and why; nothing has been done yet."""

    exit_code = 2


class FileSettings(NamedTuple):
    """What a settings file says; `table` is where in the file, and `worker` has the options by their names."""

    file: str | None = None
    table: str = ""
    app: str | None = None
    url: str | None = None
    worker: Mapping[str, Any] = {}

    def origin(self, key: str) -> "Origin":
        """The place of a key, for whoever wants to change it."""
        return Origin("file", f"{self.file}: {self.table}{key}")


class Origin(NamedTuple):
    """Where a value comes from: `where` is the flag, the name of the variable, or the file and its key."""

    kind: Literal["flag", "word", "variable", "file", "app", "default"]
    where: str = ""

    def __str__(self) -> str:
        return f"${self.where}" if self.kind == "variable" else self.where or self.kind


class Found(NamedTuple):
    """A value in force, and its origin; one that nobody can use, if there is an error."""

    value: Any
    origin: Origin
    error: str | None = None


class SettingsFolder:
    """The current folder as a place for settings, which are read when they are first asked for.

    Somebody who only asks for help must not meet an error in a file.
    """

    @cached_property
    def settings(self) -> FileSettings:
        return read_settings()


class Seconds(click.FloatRange):
    """A number of seconds within bounds; what is no number at all is out of any."""

    name = "number of seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds: float = super().convert(value, param, ctx)
        if isnan(seconds):
            self.fail(f"{value!r} is no number of seconds.", param, ctx)
        return seconds


class Queues(click.types.StringParamType):
    """The names of queues: A,B or a list of them. Every one is checked, and there must be one."""

    name = "queues"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The names with commas between them. Raises BadParameter."""
        from shigoto.options import check_name

        given = value if _is_list(value) else [name.strip() for name in str(value).split(",") if name.strip()]
        if not given:
            self.fail(f"{value!r} names no queue. Leave it out for all of them.", param, ctx)
        try:
            return ",".join(check_name(name, "The queue") for name in given)
        except OptionInvalid as error:
            self.fail(str(error), param, ctx)


class HealthPlace(click.types.StringParamType):
    """A port, perhaps with a host before it: 8711, 0.0.0.0:8711, [::1]:8711."""

    name = "[HOST:]PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The same, with a host. Raises BadParameter."""
        host, colon, port = str(value).rpartition(":")
        bare = (
            host.removeprefix("[").removesuffix("]") if host.startswith("[") and host.endswith("]") else host
        )
        if (colon and not bare) or (":" in bare and bare == host):
            self.fail(
                f"{value!r} is no [HOST:]PORT; a host with colons stands in brackets: [::1]:8711.", param, ctx
            )
        if (
            not (port.isascii() and port.isdecimal())
            or len(port) > len(str(MOST_PORT))
            or int(port) > MOST_PORT
        ):
            self.fail(f"{value!r} has no port from 0 to {MOST_PORT} at its end.", param, ctx)
        return f"{host or HOST}:{int(port)}"


class Setting(click.Option):
    """An option of the worker that a variable can set too; a wrong value is told with the variable's name."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """What to look at: the variable, if the value came from there."""
        if ctx is not None and ctx.get_parameter_source(str(self.name)) is ParameterSource.ENVIRONMENT:
            return f"${self.envvar}"
        return self.opts[0]

    def get_help_extra(self, ctx: click.Context) -> Any:
        """What stands in brackets: the default. A range is told to whoever leaves it."""
        extra: Any = super().get_help_extra(ctx)
        extra.pop("range", None)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        return extra


def variable(option: str) -> str:
    """The environment variable of an option: SHIGOTO_STOP_TIMEOUT of --stop-timeout."""
    return PREFIX + option.strip("-").replace("-", "_").upper()


def find_option(ctx: click.Context, option: click.Option, settings: FileSettings) -> Found:
    """The value of a worker's option in a context that was made with these settings as defaults."""
    name = str(option.name)
    value: Any = ctx.params.get(name)
    match ctx.get_parameter_source(name):
        case ParameterSource.COMMANDLINE:
            return Found(value, Origin("flag", option.opts[0]))
        case ParameterSource.ENVIRONMENT:
            return Found(value, Origin("variable", str(option.envvar)))
        case ParameterSource.DEFAULT_MAP:
            return Found(value, settings.origin(f"worker.{key_of(option)}"))
        case _:
            return Found(value, Origin("default"))


def key_of(option: click.Option) -> str:
    """What an option is called in a file: like its flag."""
    return option.opts[0].removeprefix("--")


def read_settings() -> FileSettings:
    """The settings of the current folder. Raises SettingsError."""
    named = from_environment(CONFIG)
    if own := _load(named or FILE, required=named is not None):
        return _checked(own, FileSettings(file=named or FILE))
    if named is None and (project := _project_table()):
        return _checked(project, FileSettings(file=PROJECT, table=f"{TABLE}."))
    return FileSettings()


def is_overruled() -> bool:
    """Whether `pyproject.toml` has settings that nobody looks at, because `shigoto.toml` has some."""
    try:
        return from_environment(CONFIG) is None and bool(_load(FILE)) and bool(_project_table())
    except SettingsError:
        return False


def worker_options() -> dict[str, click.Option]:
    """The options of `worker` that a file may set, by their names."""
    from shigoto.cli.worker import worker

    return {str(option.name): option for option in worker.params if isinstance(option, Setting)}


def _project_table() -> dict[str, Any]:
    tool: object = _load(PROJECT, only_with=b"shigoto").get("tool")
    found: object = tool.get("shigoto", {}) if _is_table(tool) else {}
    if not _is_table(found):
        raise SettingsError(f"{PROJECT}: {TABLE} must be a table, not {_shown(found)}.")
    return found


def _load(file: str, *, required: bool = False, only_with: bytes = b"") -> dict[str, Any]:
    """The contents of a file; none if it need not be there and is not, or cannot have anything for us in it."""
    named = f"{file}, which ${CONFIG} names," if required else file
    try:
        status = os.stat(file)
        # Whoever opens a pipe waits, perhaps for ever.
        is_null = os.path.samestat(status, os.stat(os.devnull))
        if not (is_null or stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise SettingsError(f"{named} is no regular file.")
        with open(file, "rb") as stream:
            text = stream.read()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not required:
            return {}
        raise SettingsError(f"{named} cannot be read: {error.strerror}.") from error
    if only_with not in text:
        return {}
    import tomllib

    try:
        return tomllib.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{file} is not in UTF-8: byte {error.start + 1} is no part of a letter."
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{file} is no TOML: {str(error).rstrip('.')}.") from error


def _checked(found: Mapping[str, Any], place: FileSettings) -> FileSettings:
    for key in found:
        if key not in TOP:
            raise SettingsError(f"{place.file}: there is no setting {place.table}{key}.{_hint(key, place)}")
    worker: object = found.get("worker", {})
    if not _is_table(worker):
        raise SettingsError(f"{place.file}: {place.table}worker must be a table, not {_shown(worker)}.")
    return place._replace(
        app=_text("app", found, place), url=_text("url", found, place), worker=_checked_worker(worker, place)
    )


def _hint(key: str, place: FileSettings) -> str:
    """What may have been meant by a key that stands at the top."""
    if key.replace("-", "_") in worker_options():
        return f" It belongs into the table [{place.table}worker]."
    return nearest(key, TOP) or f" Settings are: {', '.join(TOP)}."


def _text(key: str, found: Mapping[str, Any], place: FileSettings) -> str | None:
    value: object = found.get(key)
    if value is not None and not (isinstance(value, str) and value):
        example = "'shop.tasks:app'" if key == "app" else "'sqlite:///jobs.db'"
        raise SettingsError(
            f"{place.file}: {place.table}{key} must be a string such as {example}, not {_kind(value)}."
        )
    return value


def _checked_worker(found: Mapping[str, Any], place: FileSettings) -> dict[str, Any]:
    options = worker_options()
    checked: dict[str, Any] = {}
    for key, value in found.items():
        name = key.replace("-", "_")
        where = f"{place.file}: {place.table}worker.{key}"
        if name not in options:
            known = [key_of(option) for option in options.values()]
            hint = nearest(key, known) or f" The settings of a worker are: {', '.join(known)}."
            raise SettingsError(f"{where} is no setting.{hint}")
        if name in checked:
            raise SettingsError(f"{where} is there twice, once with '-' and once with '_'.")
        checked[name] = _checked_value(value, options[name], where)
    return checked


def _checked_value(value: Any, option: click.Option, where: str) -> Any:
    """The value as the option takes it. A TOML value has a type, and only a fitting one can be meant."""
    kind, expected = _expected(option)
    refusal = f"{where} must be {expected}, not {_shown(value)}."
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool) or _has_others(value):
        raise SettingsError(
            refusal + (" Leave the quotes out." if isinstance(value, str) and kind is not str else "")
        )
    try:
        return option.type.convert(value, option, None)
    except click.BadParameter as error:
        if isinstance(option.type, Queues):
            raise SettingsError(f"{where}: {error.message}") from error
        choices = option.type.choices if isinstance(option.type, click.Choice) else ()
        raise SettingsError(refusal + nearest(str(value), [str(choice) for choice in choices])) from error


def _expected(option: click.Option) -> "tuple[type | tuple[type, ...], str]":
    """Which values of TOML an option takes, and how to say so."""
    if option.is_flag:
        return bool, "true or false"
    if isinstance(option.type, click.IntRange):
        return int, f"a whole number{_range(option.type)}"
    if isinstance(option.type, click.FloatRange):
        return (int, float), f"a number of seconds{_range(option.type)}"
    if isinstance(option.type, click.Choice):
        return str, f"one of {', '.join(option.type.choices)}"
    if isinstance(option.type, Queues):
        return (str, list), "a string, or a list of them"
    if isinstance(option.type, HealthPlace):
        return (str, int), "a port such as 8711, or a string such as '0.0.0.0:8711'"
    return str, "a string"


def _has_others(value: object) -> bool:
    return _is_list(value) and not all(isinstance(each, str) for each in value)


def _range(type: click.IntRange | click.FloatRange) -> str:
    if type.max is None:
        return f" of at least {type.min}"
    return f" from {type.min:g} to {type.max:g}" if type.max < 10**6 else f" from {type.min} to {type.max}"


def _is_table(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _shown(value: object) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else without_secrets(repr(value))
    return text if len(text) <= 60 else f"{text[:60]}…"


def _kind(value: object) -> str:
    """A value, or only what it is where there may be a password inside of it."""
    return "a table" if _is_table(value) else "a list" if _is_list(value) else _shown(value)


def from_environment(name: str) -> str | None:
    """What a variable says; an empty one says nothing."""
    return os.environ.get(name) or None
