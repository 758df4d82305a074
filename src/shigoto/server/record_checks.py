"""Checks of records that come in as a whole: what our own code could not have made is refused.

The other side may be anybody who has a token, and what is stored here others will read. Of every request it is checked
how much it asks for, and whether its numbers can be those of a store: what no store can count is the caller's mistake,
not ours. Specs, ends and reports of runs, and what workers say of themselves are looked at one by one.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

from msgspec import DecodeError, Struct, json

from shigoto import context, options
from shigoto.codec.text import deeper_than
from shigoto.engine.remote.driver import MOST_IDS, MOST_JOBS
from shigoto.engine.remote.protocol import VERBS
from shigoto.filters import MAX_NUMBER, MAX_PAGE
from shigoto.model.errors import OptionInvalid, PayloadInvalid, PayloadTooLarge, RequestInvalid
from shigoto.model.job import MAX_META, MAX_PRIORITY, MIN_PRIORITY, JobFilter, JobSpec
from shigoto.model.schedule import Change
from shigoto.model.text import storable
from shigoto.model.time import LONGEST
from shigoto.model.worker import Announcement, Death, LogTail, Report, Settlement, SweepOrder
from shigoto.retry import Retry

MOST_AT_ONCE = MOST_JOBS  # of whatever is listed or asked for
MOST_HELD = 100_000  # leases of one worker
MOST: Mapping[str, int] = {"ids of get": MOST_IDS, "held of beat": MOST_HELD}

BY_ITSELF = frozenset({"enqueue_many", "report", "settle", "bury", "announce"})
# Of what is counted one by one, such as tokens and lines: stores have no room for more.
MOST_COUNTED = 2**31 - 1
COUNTED = frozenset({"token", "revision", "seen", "errors", "count", "counts", "known"})
OF_JOBS = frozenset({"before", "after", "numbers", "number"})
FAR = 2**53  # of an instant of a schedule, either way: what it means is for those above to say

LONGEST_LEASE = 86_400_000  # milliseconds
MOST_FAILURES = 1_000_000
MOST_SLOTS = 1_000_000
MOST_TASKS = 10_000
MOST_WORDS = 64 * 1024  # bytes of an error or a traceback; our own code writes 16 KiB of both
LONGEST_LABEL = 1_000  # letters of what a worker says of itself

_objects = json.Decoder(dict[str, object])
_texts = json.Decoder(list[str])


def expect_bounded(verb: str, args: tuple[Any, ...]) -> None:
    """Raise RequestInvalid for more than one request should ask for, and for numbers that none of a store can be."""
    for what, arg in zip(VERBS[verb].names, args, strict=True):
        most, count = MOST.get(f"{what} of {verb}", MOST_AT_ONCE), _asked_for(what, arg)
        if isinstance(arg, JobFilter):
            most = MAX_PAGE
        if not 0 <= count <= most:
            raise RequestInvalid(f"{what}: {count:,} is not allowed, but at most {most:,} at once.", what)
        if verb not in BY_ITSELF:
            for name, number in _numbers(arg, what):
                low, high = _range(verb, name)
                if not low <= number <= high:
                    raise RequestInvalid(f"{name}: {number} is not from {low} to {high}.", name)


def _range(verb: str, name: str) -> tuple[int, int]:
    """From where to where a number may lie that stands in this field."""
    if name in COUNTED:
        return 0, MOST_COUNTED
    if name in OF_JOBS:  # to delete what is not there is no mistake
        return (-MAX_NUMBER if verb == "delete" else 0), MAX_NUMBER
    return (-FAR, FAR) if verb == "tick" else (0, options.LAST_INSTANT)


def _asked_for(what: str, arg: Any) -> int:
    """How many things an argument has, or asks for."""
    match arg:
        case JobFilter():
            return max(0, arg.limit)  # a page of fewer than none has none
        case SweepOrder():
            return max(arg.batch, len(arg.fence))
        case int() if what == "limit":
            return arg
        case list() | frozenset():
            return len(cast("Collection[object]", arg))
        case _:
            return 0


def _numbers(value: Any, name: str) -> Iterator[tuple[str, int]]:
    """All whole numbers in a value, with the names of the fields that they stand in."""
    match value:
        case bool() | str() | JobSpec():
            pass
        case int():
            yield name, value
        case Struct():
            for field in value.__struct_fields__:
                if field != "limit" or not isinstance(value, JobFilter):  # which is looked at above
                    yield from _numbers(getattr(value, field), field)
        case (int(number), int(token)) if name == "held":
            yield from (("number", number), ("token", token))
        case list() | tuple() | frozenset():
            for each in cast("Collection[object]", value):
                yield from _numbers(each, name)
        case dict():
            yield from _numbers(list(cast("dict[object, object]", value).values()), name)
        case _:
            pass


def checked(spec: JobSpec) -> JobSpec:
    """The job, if it can be one. Raises OptionInvalid, PayloadInvalid or PayloadTooLarge."""
    _check_name(spec.task, "The task")
    _check_name(spec.queue, "The queue")
    _check_object(spec.payload)
    if spec.template is not None:
        raise OptionInvalid("pattern means something in one process only.")
    options.whole("priority", spec.priority, MIN_PRIORITY, MAX_PRIORITY)
    options.whole("max_failures", spec.max_failures, 1, MOST_FAILURES)
    for option, value, high in (
        ("delay", spec.delay, LONGEST),
        ("run_at", spec.run_at, options.LAST_INSTANT),
        ("expires", spec.expires_in, LONGEST),
        ("expires", spec.expires_at, options.LAST_INSTANT),
        ("timeout", spec.timeout, LONGEST),
        ("soft_timeout", spec.soft_timeout, LONGEST),
        ("max_crashes", spec.max_crashes, options.MAX_CRASHES),
    ):
        if value:
            options.whole(option, value, 0, high)
    if spec.tenant:
        options.text("tenant", spec.tenant, options.MAX_TENANT)
    if spec.key is not None:
        options.text("key", spec.key, options.MAX_KEY)
    elif spec.key_mode != "keep":
        raise OptionInvalid("key_mode needs a key.")
    _check_rest(spec.retry, spec.tags, spec.meta)
    return spec


def expect_storable(said: Settlement | Report | Death) -> None:
    """Raise OptionInvalid, PayloadInvalid or PayloadTooLarge if others could not read what is said of a run."""
    _expect_number("number", said.number)
    if isinstance(said, Death):
        _expect_end(said)
        return
    _expect_number("token", said.token, MOST_COUNTED)
    if isinstance(said, Settlement):
        _expect_end(said)
        if said.result is not None:
            _expect_json(said.result, options.MAX_PAYLOAD, "The result")
    elif said.checkpoint is not None:
        _expect_json(said.checkpoint, context.MAX_CHECKPOINT, "The checkpoint")
    if said.progress is not None and not 0 <= said.progress <= 1:
        raise OptionInvalid("progress is a fraction from 0 to 1.")
    if said.progress_text is not None:
        _expect_words("progress_text", said.progress_text, context.MAX_PROGRESS_BYTES)
    if said.log is not None:
        _expect_lines(said.log)


def expect_introduced(said: Announcement) -> None:
    """Raise OptionInvalid if a worker says of itself what no worker of ours would."""
    options.text("The name of a worker", said.name, LONGEST_LABEL)
    for what, label in (("host", said.host), ("version", said.version)):
        if label:
            options.text(what, label, LONGEST_LABEL)
    for what, names in (("The task", said.tasks), ("The queue", said.queues or ())):
        if len(names) > MOST_TASKS:
            raise OptionInvalid(f"A worker has at most {MOST_TASKS:,} names of one kind.")
        for name in names:
            _check_name(name, what)
    options.whole("slots", said.slots, 0, MOST_SLOTS)
    options.whole("lease", said.lease, 1, LONGEST_LEASE)
    options.whole("pid", said.pid, 0, 2**32)


def expect_tickable(change: Change) -> Change:
    """The change of a schedule, if it is one that can be. Raises OptionInvalid, PayloadInvalid or PayloadTooLarge."""
    options.text("The name of a schedule", change.schedule.name, LONGEST_LABEL)
    for firing in change.firings:
        if firing.spec is not None:
            checked(firing.spec)
    return change


def _expect_number(what: str, number: int, most: int = MAX_NUMBER) -> None:
    if not 0 <= number <= most:
        raise OptionInvalid(f"{what} is none that a store gives out.")


def _expect_end(said: Settlement | Death) -> None:
    if said.delay is not None:
        options.whole("delay", said.delay, 0, LONGEST)
    if said.error is not None:
        _expect_words("error", said.error, MOST_WORDS)
    if said.traceback is not None:
        _expect_words("traceback", said.traceback, MOST_WORDS)


def _expect_lines(log: LogTail) -> None:
    _expect_number("first", log.first, MOST_COUNTED)
    size = 0
    for line in log.lines:
        _expect_number("line", line.line, MOST_COUNTED)
        options.whole("at", line.at, 0, options.LAST_INSTANT)
        if len(line.level) > context.LONGEST_LEVEL or len(line.text) > context.LONGEST_LINE:
            raise PayloadTooLarge("A line of a log is longer than a line may be.")
        size += len(storable("level", line.level)) + len(storable("a line", line.text).encode())
    if len(log.lines) > context.MOST_LINES or size > 2 * context.MOST_LOG_BYTES:
        raise PayloadTooLarge("The log of a run is longer than is kept of one.")


def _expect_words(what: str, said: str, most: int) -> None:
    if len(storable(what, said).encode()) > most:
        raise PayloadTooLarge(f"{what} is over the limit of {most:,} bytes.")


def _expect_json(written: str, most: int, what: str) -> None:
    raw = _sized(written, most, what)
    try:
        json.decode(raw)
    except (DecodeError, RecursionError):
        raise PayloadInvalid(f"{what} of a run is no JSON.") from None


@lru_cache(maxsize=1_000)
def _check_name(name: str, what: str) -> None:
    options.check_name(name, what)


@lru_cache(maxsize=1_000)
def _check_rest(retry: str | None, tags: str | None, meta: str | None) -> None:
    """What the jobs of one call site have in common."""
    if retry is not None:
        Retry.load(retry)
    if meta is not None:
        _check_object(meta, MAX_META, "meta")
    try:
        names = [] if tags is None else _texts.decode(tags)
    except DecodeError:
        raise OptionInvalid("tags are a JSON list of texts.") from None
    if len(names) > options.MAX_TAGS:
        raise OptionInvalid(f"A job takes at most {options.MAX_TAGS} tags, and here are {len(names)}.")
    for name in names:
        options.text("a tag", name, options.MAX_TAG)


def _check_object(written: str, most: int = options.MAX_PAYLOAD, what: str = "The arguments") -> None:
    raw = _sized(written, most, what)
    try:
        _objects.decode(raw)
    except (DecodeError, RecursionError):
        raise PayloadInvalid(f"{what} must be a JSON object.") from None


def _sized(written: str, most: int, what: str) -> bytes:
    raw = written.encode()
    if len(raw) > most:
        raise PayloadTooLarge(f"{what}: {len(raw):,} bytes of JSON are over the limit of {most:,}.")
    if deeper_than(raw, options.MAX_DEPTH):
        raise PayloadInvalid(f"{what}: nested deeper than {options.MAX_DEPTH} levels.")
    return raw
