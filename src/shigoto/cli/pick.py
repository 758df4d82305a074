"""Which jobs a command means: `42`, `#42` or an id for one of them, or a filter for all that match."""

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast, get_args
from uuid import UUID

import click
from msgspec import structs

from shigoto.cli.suggest import suggest
from shigoto.cli.target import split_store
from shigoto.filters import MAX_NUMBER, Filters, KindName, is_term, together, wanted
from shigoto.model.errors import JobNotFound, OptionInvalid
from shigoto.model.job import Job, JobFilter
from shigoto.model.secrets import ENVELOPE_MARK

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine

F = TypeVar("F", bound=Callable[..., Any])

NUMBER = re.compile(r"#?([0-9]{1,19})", re.ASCII)
NO_JOB = "{!r} is no job: write its number, such as 42 or '#42', or its id."


class Meant(NamedTuple):
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


def takes_filter(command: F) -> F:
    """Flags that say the same as terms of the filter language."""
    kind = click.option(
        "--kind",
        "failure_kind",
        metavar="KIND",
        type=click.Choice(get_args(KindName)),
        help="Only with this kind of failure, such as timeout or crash_loop.",
    )
    command = kind(command)
    flags = {
        "tenant": "Only of this tenant.",
        "key": "Only with this unique key.",
        "tag": "Only with this tag.",
        "task": "Only of this task.",
        "queue": "Only of this queue.",
    }
    suggestions = {"task": suggest("tasks"), "queue": suggest("queues")}
    for name, text in flags.items():
        command = click.option(f"--{name}", help=text, shell_complete=suggestions.get(name))(command)
    return command


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
    """The store and the terms of a filter."""
    return split_store(words, known=[word for word in words[:1] if is_term(word)])


def split_meant(ctx: click.Context, words: Sequence[str]) -> Meant:
    """The store and what is meant there, of which there must be something. A usage error for any other word."""
    known = [word for word in words[:1] if number_or_id(word) is not None or is_term(word)]
    store, rest = split_store(words, known=known)
    terms = [word for word in rest if number_or_id(word) is None]
    if not terms or not any(is_term(word) for word in terms):
        return Meant(
            *split_jobs(ctx, words, hint=" A filter is made of words such as pending or queue:mail."), []
        )
    if len(terms) < len(rest):
        raise click.UsageError(
            "Write the numbers of jobs or a filter, not both: a filter is for all that match.", ctx
        )
    return Meant(store, [], terms)


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
    """What the word says of a job, if it says anything."""
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
        job = _numbered(engine, meant)
    else:
        job = None
    if job is None:
        raise JobNotFound(f"There is no job {word}: it never was in this store, or its retention has passed.")
    return job


def _numbered(engine: "Engine", number: int) -> Job | None:
    """The newest job that is not above the number, if it has this very one."""
    jobs = engine.run(engine.find(JobFilter(before=number + 1, limit=1)))
    return next((job for job in jobs if job.number == number), None)
