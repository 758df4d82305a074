"""The words of a command line: jobs, filters, arguments, durations, and the name of the operator.

    42  #42  0197…-…            one job, by its number or its id (`pick`)
    queue:mail since:1h         a filter, for all jobs that match (`read_filter`)
    '{"to": "Ada"}' --arg n=1   the arguments of a job: one JSON object, or NAME=VALUE for each
    90s  2030-01-31T09:00Z      a duration, a moment
    cli:user@host               who is at the command line, for the audit (`actor`)

A word that cannot be read is a usage error of the command.
"""

import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union, cast, get_args, get_origin
from uuid import UUID

import click
import msgspec
from msgspec import structs

from shigoto.cli import output
from shigoto.cli.target import split_store, suggest, takes
from shigoto.codec.signature import Signature
from shigoto.filters import MAX_NUMBER, Filters, KindName, is_term, together, wanted
from shigoto.model.errors import JobError, JobNotFound, OptionInvalid, PayloadInvalid
from shigoto.model.job import Job, JobFilter
from shigoto.model.secrets import ENVELOPE_MARK
from shigoto.model.text import fit, spelt_out
from shigoto.model.time import read_duration

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine
    from shigoto.server.audit import Audited

NUMBER = re.compile(r"#?([0-9]{1,19})", re.ASCII)
NO_JOB = "{!r} is no job: write its number, such as 42 or '#42', or its id."
NEGATIVE = re.compile(r"-\d+")
NO_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)  # the last one for [[[[[[…
FORMS = """Write '{"name": "value"}' or --arg name=value; only the built-in tasks take a message."""
SHOWN = 60  # cells of what was written
LONGEST_ACTOR = 200  # bytes


def read_length(ctx: click.Context, option: click.Parameter, text: str | None) -> timedelta | None:
    if text is None:
        return None
    length = read_duration(text)
    if length is None:
        raise click.BadParameter(
            f"{text!r} is no duration: write seconds, or 90s, 5m, 2h, 1d, 2w.", ctx, option
        )
    return length


def read_moment(ctx: click.Context, option: click.Parameter, text: str | None) -> datetime | None:
    """A moment with its time zone, as ISO 8601."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time: write 2030-01-31T09:00:00Z.", ctx, option) from None
    if moment.utcoffset() is None:
        raise click.BadParameter(f"{text!r} has no time zone: end it with Z or +09:00.", ctx, option)
    return moment


class WithNumbers(click.Command):
    """A command among whose words may be negative numbers, which other commands would take for options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words, with those that are no options after all options."""
        valued = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag
            for name in option.opts
        }
        options: list[str] = []
        words: list[str] = []
        rest = iter(args)
        for word in rest:
            if word == "--":
                words += rest
            elif NEGATIVE.fullmatch(word) or not word.startswith("-") or word == "-":
                words.append(word)
            elif word not in valued:
                options.append(word)
            elif (value := next(rest, None)) is not None:
                options += [word, value]
            else:  # nothing comes after it, and nothing may
                return super().parse_args(ctx, [*words, word])
        return super().parse_args(ctx, [*options, "--", *words])


def read_object(text: str) -> dict[str, Any]:
    """The arguments in a JSON object. Raises PayloadInvalid."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except NO_JSON:
        raise PayloadInvalid(
            f"The arguments are no JSON object: {output.clip(text, SHOWN)}. {FORMS}"
        ) from None


def is_object(text: str) -> bool:
    """Whether a text is a JSON object, and not a message that merely begins like one."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except NO_JSON:
        return False


def read_arguments(
    given: Sequence[str], *, beside: Mapping[str, Any], signature: Signature | None
) -> dict[str, Any]:
    """The arguments of all --arg, none of which may stand in the object `beside` them. Raises a usage error."""
    found: dict[str, Any] = {}
    for argument in given:
        name, sign, text = argument.partition("=")
        if not sign or not name.isidentifier():
            raise click.UsageError(f"--arg takes NAME=VALUE, not {argument!r}.")
        if name in found or name in beside:
            ways = "both times as --arg" if name in found else "as a word and as --arg"
            raise click.UsageError(f"The argument {name!r} is given twice, {ways}.")
        found[name] = _read(name, text, signature)
    return found


@contextmanager
def hinting_at_texts(
    given: Sequence[str], arguments: Mapping[str, Any], signature: Signature | None
) -> Generator[None]:
    """If the task refuses what looked like JSON, and would take it as a text, say how to write that."""
    try:
        yield
    except PayloadInvalid as error:
        for name, _, text in (argument.partition("=") for argument in given):
            is_refused = f"argument {name!r}: " in str(error) and signature is not None
            if is_refused and arguments[name] != text and _takes(signature, {**arguments, name: text}):
                raise PayloadInvalid(f"{error} For a text {_quoted(name, text)}.") from error
        raise


def _takes(signature: Signature | None, arguments: Mapping[str, Any]) -> bool:
    try:
        return signature is not None and bool(signature.encode_from_outside(arguments))
    except JobError:
        return False


def _read(name: str, text: str, signature: Signature | None) -> Any:
    """A value. Where the task wants a str it is the text as it is, whatever that looks like."""
    slot = None if signature is None else signature.arguments.slots.get(name)
    kinds = set[Any]() if slot is None else _members(slot.annotation)
    if kinds - {NoneType} == {str}:
        return None if text == "null" and NoneType in kinds else text
    try:
        return msgspec.json.decode(text)
    except NO_JSON:
        if text.startswith(("{", "[")):
            raise click.UsageError(
                f"--arg {name} begins like JSON and is none: {output.clip(output.one_line(text), SHOWN)}."
                f" For a text {_quoted(name, text)}."
            ) from None
        return text


def _members(annotation: Any) -> set[Any]:
    """The types that an annotation leaves to choose from, by their plainest names."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return set[Any]().union(*(_members(each) for each in get_args(annotation)))
    supertype: Any = getattr(annotation, "__supertype__", None)
    return {annotation} if supertype is None else _members(supertype)


def _quoted(name: str, text: str) -> str:
    """How to write an argument that is a text and looks like something else."""
    from shlex import quote

    written = msgspec.json.encode(text.encode("utf-8", "replace").decode()).decode()
    return f"write --arg {quote(f'{name}={output.clip(written, SHOWN)}')}"


class Selection(NamedTuple):
    """The store and what is meant there: jobs one by one, or the terms of a filter."""

    store: str | None
    jobs: list[str]
    terms: list[str]


@contextmanager
def misuse(ctx: click.Context) -> Generator[None]:
    """What cannot be meant is a misuse of the command, as any other wrong word is."""
    try:
        yield
    except OptionInvalid as error:
        raise click.UsageError(str(error), ctx) from None


# Flags that say the same as terms of the filter language.
takes_filter = takes(
    click.option("--queue", help="Only of this queue.", shell_complete=suggest("queues")),
    click.option("--task", help="Only of this task.", shell_complete=suggest("tasks")),
    click.option("--tag", help="Only with this tag."),
    click.option("--key", help="Only with this unique key."),
    click.option("--tenant", help="Only of this tenant."),
    click.option(
        "--kind",
        "failure_kind",
        metavar="KIND",
        type=click.Choice(get_args(KindName)),
        help="Only with this kind of failure, such as timeout or crash_loop.",
    ),
)


def read_filter(ctx: click.Context, terms: Sequence[str], flags: dict[str, Any]) -> Filters:
    """What terms and flags ask for together. Raises a usage error."""
    given = {name: value for name, value in flags.items() if value is not None}
    with misuse(ctx):
        return together(terms, cast("Filters", given))


def tell_unsearched(engine: "Engine", filters: Filters) -> None:
    """Say, beside what is told, that there are jobs into whose arguments nobody can look."""
    if filters.get("args"):
        rest = structs.replace(wanted(filters), args=((ENVELOPE_MARK, "enc"),), limit=1)
        if engine.run(engine.find(rest)):
            click.echo(
                "Some jobs have encrypted arguments: they cannot be found by args., and are left out.",
                err=True,
            )


def split_filter(words: Sequence[str]) -> tuple[str | None, list[str]]:
    return split_store(words, known=[word for word in words[:1] if is_term(word)])


def split_selection(ctx: click.Context, words: Sequence[str]) -> Selection:
    """The store and what is meant there, of which there must be something. A usage error for any other word."""
    known = [word for word in words[:1] if number_or_id(word) is not None or is_term(word)]
    store, rest = split_store(words, known=known)
    terms = [word for word in rest if number_or_id(word) is None]
    if not terms or not any(is_term(word) for word in terms):
        return Selection(
            *split_jobs(ctx, words, hint=" A filter is made of words such as pending or queue:mail."), []
        )
    if len(terms) < len(rest):
        raise click.UsageError(
            "Write the numbers of jobs or a filter, not both: a filter is for all that match.", ctx
        )
    return Selection(store, [], terms)


def split_jobs(ctx: click.Context, words: Sequence[str], *, hint: str = "") -> tuple[str | None, list[str]]:
    """The store and the words that name jobs, of which there must be one. A usage error for any other word."""
    store, jobs = split_store(words, known=[word for word in words[:1] if number_or_id(word) is not None])
    if not jobs:
        raise click.UsageError(f"Which job? Write its number, such as 42, or its id.{hint}", ctx)
    for word in jobs:
        if number_or_id(word) is None:
            raise click.UsageError(NO_JOB.format(word) + hint, ctx)
    return store, list(dict.fromkeys(jobs))


def number_or_id(word: str) -> int | UUID | None:
    if match := NUMBER.fullmatch(word):
        return int(match[1])
    try:
        return UUID(word)
    except ValueError:
        return None


def pick(engine: "Engine", word: str) -> Job:
    """The job that a word means. Raises JobNotFound."""
    meant = number_or_id(word)
    if isinstance(meant, UUID):
        [job] = engine.run(engine.get([meant]))
    elif meant is not None and meant < MAX_NUMBER:
        # The newest job that is not above the number, if it has this very one.
        jobs = engine.run(engine.find(JobFilter(before=meant + 1, limit=1)))
        job = next((job for job in jobs if job.number == meant), None)
    else:
        job = None
    if job is None:
        raise JobNotFound(f"There is no job {word}: it never was in this store, or its retention has passed.")
    return job


def actor() -> str:
    """`cli:user@host`, as the system knows them; a container may know no name, but always a number."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = str(os.getuid())
    return fit(spelt_out(f"cli:{user}@{socket.gethostname()}"), LONGEST_ACTOR)


def audited(engine: "Engine", filters: "Filters | None" = None) -> "Audited":
    """The engine, which notes what is done to jobs and queues; with filters, as done to all that match."""
    from shigoto.filters import write_filter
    from shigoto.server.audit import Audited

    return Audited(engine, actor(), None if filters is None else write_filter(filters))
