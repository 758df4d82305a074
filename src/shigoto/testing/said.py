"""What `using` has said of a call, beside what a job was enqueued with.

Only what was said counts, and all of it, also if it is what the task says of itself. A retry policy and time limits
that a job has from its task are those of the task: to say them is no difference.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from shigoto.model.job import Job
from shigoto.model.text import shown
from shigoto.model.time import Millis, to_datetime, to_millis
from shigoto.options import Options
from shigoto.retry import Retry


class Case(Struct, frozen=True):
    """One option: what a call says of it, and what a job has; `own` are the options of the job's task."""

    wanted: Callable[[Options], Any]
    got: Callable[[Job, Options], Any]


def unlike(wanted: Options, own: Options, asked: Job) -> Iterator[str]:
    """Where a job, as it was when it was enqueued, is not what `using` has said."""
    for name, case in CASES.items():
        if name in wanted.said:
            want, got = case.wanted(wanted), case.got(asked, own)
            if want != got:
                yield f"{name} is {_text(got)}, not {_text(want)}"
    if "delay" in wanted.said:
        yield from _unlike_start(wanted, asked)
    if "expires_in" in wanted.said:
        yield from _unlike_expiry(wanted, asked)


def described(wanted: Options) -> Iterator[str]:
    """What `using` has said, in words."""
    for name, case in CASES.items():
        if name in wanted.said:
            yield f"with {name} {_text(case.wanted(wanted))}"
    if "delay" in wanted.said:
        yield f"with {_start(wanted.run_at, wanted.delay)}"
    if "expires_in" in wanted.said:
        yield f"with {_expiry(wanted.expires_at, wanted.expires_in)}"


def at(instant: Millis) -> str:
    """An instant as text."""
    return to_datetime(instant).isoformat()


def delay_of(asked: Job) -> Millis:
    """How long after its enqueue a job was to start."""
    return to_millis(asked.run_at) - to_millis(asked.created_at)


def _unlike_start(wanted: Options, asked: Job) -> Iterator[str]:
    if wanted.run_at is not None:
        run_at = to_millis(asked.run_at)
        if run_at != wanted.run_at:
            yield f"run_at is {at(run_at)}, not {at(wanted.run_at)}"
    elif (delay := delay_of(asked)) != wanted.delay:
        yield f"its delay is {delay / 1000:g} s, not {wanted.delay / 1000:g} s"


def _unlike_expiry(wanted: Options, asked: Job) -> Iterator[str]:
    created = to_millis(asked.created_at)
    got = None if asked.expires_at is None else to_millis(asked.expires_at)
    want = wanted.expires_at if wanted.expires_in is None else created + wanted.expires_in
    if got != want:
        by_instant = wanted.expires_at is not None
        has = _expiry(got if by_instant else None, None if got is None else got - created)
        yield f"it has {has}, not {_expiry(wanted.expires_at, wanted.expires_in)}"


def _start(run_at: Millis | None, delay: Millis) -> str:
    return f"a delay of {delay / 1000:g} s" if run_at is None else f"run_at {at(run_at)}"


def _expiry(expires_at: Millis | None, expires_in: Millis | None) -> str:
    if expires_at is not None:
        return f"expiry at {at(expires_at)}"
    return "no expiry" if expires_in is None else f"expiry after {expires_in / 1000:g} s"


def _limit(own: Millis | None, stored: Millis | None) -> float | None:
    limit = own if stored is None else stored
    return limit / 1000 if limit else None


def _list(tags: str | None) -> list[str]:
    return msgspec.json.decode(tags, type=list[str]) if tags else []


def _object(meta: str | None) -> dict[str, Any]:
    return msgspec.json.decode(meta, type=dict[str, Any]) if meta else {}


def _text(value: object) -> str:
    return f"{value:g} s" if isinstance(value, float) else shown(value)


def _same(name: str) -> Case:
    return Case(lambda wanted: getattr(wanted, name), lambda job, _: getattr(job, name))


CASES = {
    **{name: _same(name) for name in ("id", "queue", "priority", "tenant", "key", "max_crashes")},
    "retry": Case(
        lambda wanted: wanted.retry.with_retries(0),
        lambda job, own: (own.retry if job.retry is None else Retry.load(job.retry)).with_retries(0),
    ),
    "retries": Case(lambda wanted: wanted.retry.retries, lambda job, _: job.max_failures - 1),
    "timeout": Case(
        lambda wanted: _limit(wanted.timeout, None), lambda job, own: _limit(own.timeout, job.timeout)
    ),
    "soft_timeout": Case(
        lambda wanted: _limit(wanted.soft_timeout, None),
        lambda job, own: _limit(own.soft_timeout, job.soft_timeout),
    ),
    "tags": Case(lambda wanted: _list(wanted.tags), lambda job, _: list(job.tags)),
    "meta": Case(lambda wanted: _object(wanted.meta), lambda job, _: _object(job.meta)),
}
