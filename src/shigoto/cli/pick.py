"""Which jobs a command means: `42`, `#42`, or an id."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import click

from shigoto.cli.target import split_store
from shigoto.model.errors import JobNotFound
from shigoto.model.job import Job, JobFilter
from shigoto.query import MAX_NUMBER

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine

NUMBER = re.compile(r"#?([0-9]{1,19})", re.ASCII)


def split_jobs(ctx: click.Context, words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The store and the words that name jobs, of which there must be one. A usage error for any other word."""
    store, jobs = split_store(words, known=[word for word in words[:1] if number_or_id(word) is not None])
    if not jobs:
        raise click.UsageError("Which job? Write its number, such as 42, or its id.", ctx)
    for word in jobs:
        if number_or_id(word) is None:
            raise click.UsageError(
                f"{word!r} is no job: write its number, such as 42 or '#42', or its id.", ctx
            )
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
