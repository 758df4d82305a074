"""Rules: of which events a target is told, and how often. Values, checked where they are declared.

A rule decides when a notice runs, never in the store. Each is told once for each subject in a `window`, however many
processes see it: windows begin at multiples of their length since 1970, and a message is named after its window.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any, TypeVar

from msgspec import Struct, json

from shigoto.model.errors import DeclarationError, OptionInvalid
from shigoto.model.job import FailureKind
from shigoto.model.notice import Kind, Notice
from shigoto.model.text import shown, storable
from shigoto.model.time import Duration, Millis, milliseconds
from shigoto.model.worker import SweepOrder
from shigoto.notify.targets import DeliveryTarget, To, is_list, sort_of, targets_of
from shigoto.options import check_name

T = TypeVar("T")

DAY: Millis = 86_400_000
SHORTEST_WINDOW: Millis = 1_000
# That something was told is known from the job that told it, which is swept away after that time.
LONGEST_WINDOW: Millis = SweepOrder().keep_completed_for
SHORTEST_LIMIT: Millis = 1_000


class Rule(Struct, frozen=True, kw_only=True):
    """A rule as the notifier reads it. `window` 0 is for none: each notice is a message of its own. With a `digest`
    there is one message for each of its lengths, about all that happened in it."""

    name: str
    kind: Kind
    targets: tuple[DeliveryTarget, ...]
    window: Millis = 0
    digest: Millis | None = None
    limit: Millis = 0
    subjects: frozenset[str] | None = None
    queues: frozenset[str] | None = None
    failures: frozenset[FailureKind] | None = None

    def matches(self, notice: Notice) -> bool:
        return (
            notice.kind == self.kind
            and (self.subjects is None or notice.subject in self.subjects)
            and (self.queues is None or notice.queue in self.queues)
            and (self.failures is None or notice.failure in self.failures)
            and (notice.since is None or notice.since + self.limit <= notice.at)
        )

    @property
    def choice(self) -> str:
        """Which of all it is about, as text; empty for all of them. The same in every process."""
        chosen = [
            None if names is None else sorted(names) for names in (self.subjects, self.queues, self.failures)
        ]
        return json.encode(chosen).decode() if any(chosen) else ""

    @property
    def fingerprint(self) -> str:
        """What tells it from a rule that is any different; the same in every process, and nothing of what is secret."""
        keys = sorted(target.key for target in self.targets)
        said = [self.name, self.kind, keys, self.window, self.digest, self.limit, self.choice]
        return _hash(json.encode(said))


def fingerprint_of(rules: Iterable[Rule]) -> str:
    """What tells this set of rules from any other, in whatever order they are declared."""
    return _hash(" ".join(sorted(rule.fingerprint for rule in rules)).encode())


def _hash(text: bytes) -> str:
    return sha256(text).hexdigest()[:12]


def on_failure(
    *,
    to: To,
    tasks: Sequence[str] | None = None,
    queues: Sequence[str] | None = None,
    kinds: Sequence[FailureKind | str] | None = None,
    window: Duration | None = None,
    digest: Duration | None = None,
    name: str = "failure",
) -> Rule:
    """Tell of jobs that failed for good: all, or those of these `tasks`, `queues` and `kinds` of failure.

    Each is told by itself. With a `window` the first of a task is told at once, and how many more there were when the
    window is over. With a `digest` nothing is told at once, and one message tells of all tasks. Raises
    DeclarationError.
    """
    where = f"rule {shown(name)}"
    if window is not None and digest is not None:
        raise DeclarationError(
            f"{where}: window and digest exclude each other; a digest has a window already."
        )
    return _rule(
        where,
        name,
        to,
        kind="failed",
        window=0 if window is None else _window(where, "window", window),
        digest=None if digest is None else _window(where, "digest", digest),
        subjects=_names(where, "tasks", tasks),
        queues=_names(where, "queues", queues),
        failures=_each(where, "kinds", kinds, lambda each: _kind(where, each)),
    )


def on_queue_age(
    *,
    to: To,
    limit: Duration,
    queues: Sequence[str] | None = None,
    window: Duration = timedelta(hours=1),
    name: str = "queue-age",
) -> Rule:
    """Tell of queues in which a job that could run has waited for longer than `limit`, once in a `window`.

    Workers, schedulers and servers of the app look. Raises DeclarationError.
    """
    where = f"rule {shown(name)}"
    return _rule(
        where,
        name,
        to,
        kind="old",
        limit=_span(where, "limit", limit, SHORTEST_LIMIT),
        window=_window(where, "window", window),
        subjects=_names(where, "queues", queues),
    )


def on_missed_schedule(
    *,
    to: To,
    schedules: Sequence[str] | None = None,
    window: Duration = timedelta(hours=1),
    name: str = "missed-schedule",
) -> Rule:
    """Tell of schedules whose ticks are written down as missed: nobody was there, and they are not caught up.

    Raises DeclarationError.
    """
    where = f"rule {shown(name)}"
    return _rule(
        where,
        name,
        to,
        kind="missed",
        window=_window(where, "window", window),
        subjects=_names(where, "schedules", schedules),
    )


def on_dead_worker(*, to: To, name: str = "dead-worker") -> Rule:
    """Tell of workers that did not beat for their whole lease, and were fenced. Raises DeclarationError."""
    return _rule(f"rule {shown(name)}", name, to, kind="fenced")


def checked_rules(rules: object) -> tuple[Rule, ...]:
    """The rules of an app. Raises DeclarationError."""
    if not is_list(rules):
        raise DeclarationError(
            f"notify takes a list of rules, such as [on_failure(to=[Mail()])], not {sort_of(rules)}."
        )
    checked: dict[str, Rule] = {}
    for rule in rules:
        if not isinstance(rule, Rule):
            raise DeclarationError(
                "notify takes rules: on_failure, on_queue_age, on_missed_schedule, on_dead_worker; not"
                f" {sort_of(rule)}."
            )
        if rule.name in checked:
            raise DeclarationError(f"Two rules are called {rule.name!r}. Give one of them a name=.")
        checked[rule.name] = rule
    return tuple(checked.values())


def _rule(where: str, name: str, to: object, **said: Any) -> Rule:
    try:
        return Rule(name=check_name(name, "The name of a rule"), targets=targets_of(where, to), **said)
    except OptionInvalid as error:
        raise DeclarationError(str(error)) from None


def _span(where: str, option: str, value: Duration, shortest: Millis) -> Millis:
    try:
        span = milliseconds(value, f"{where}: {option}")
    except OptionInvalid as error:
        raise DeclarationError(str(error)) from None
    if span < shortest:
        raise DeclarationError(
            f"{where}: {option} must be at least {shortest / 1000:g} s, not {shown(value)}."
        )
    return span


def _window(where: str, option: str, value: Duration) -> Millis:
    window = _span(where, option, value, SHORTEST_WINDOW)
    if window > LONGEST_WINDOW:
        raise DeclarationError(
            f"{where}: {option} must be at most {LONGEST_WINDOW // DAY} days, not {shown(value)}: what was told in it"
            " is kept no longer, so the same would be told twice. Take a shorter one."
        )
    return window


def _names(where: str, option: str, given: object) -> frozenset[str] | None:
    return _each(where, option, given, lambda each: storable(f"{where}: {option}", each))


def _kind(where: str, word: str) -> FailureKind:
    try:
        return FailureKind(word)
    except ValueError:
        known = ", ".join(FailureKind)
        raise DeclarationError(f"{where}: no job fails as {shown(word)}. There are: {known}.") from None


def _each(where: str, option: str, given: object, read: Callable[[str], T]) -> frozenset[T] | None:
    if given is None:
        return None
    if not is_list(given) or not given:
        raise DeclarationError(
            f"{where}: {option} takes a list of names, or None for all, not {shown(given)}."
        )
    found: set[T] = set()
    for each in given:
        if not isinstance(each, str):
            raise DeclarationError(f"{where}: {option} takes names, not {shown(each)}.")
        found.add(read(each))
    return frozenset(found)
