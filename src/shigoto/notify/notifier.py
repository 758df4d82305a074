"""From a notice to messages: which rules it meets, and one job for each message.

    the store ──shigoto.notice──► notice: which rules? ──shigoto.deliver──► deliver: mail, webhook, log, a function

Both are ordinary jobs, so a worker that dies between two of these steps loses nothing, and what cannot be delivered now
is tried again. That nothing is told twice follows from ids: the job of a message is named after the rule, the target
and what it tells of, which is one event, or all of a subject in one window. Stored again, it is the same job.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

from msgspec import MsgspecError, Struct, json

from shigoto.context import Context
from shigoto.model.clock import Millis, to_datetime
from shigoto.model.errors import DeclarationError
from shigoto.model.job import FailureKind, Job, JobFilter, JobSpec
from shigoto.model.notice import DELIVER, NOTICE, QUEUE, Kind, Notice, as_job
from shigoto.model.sealed import without_key
from shigoto.notify.event import Event, cut
from shigoto.notify.gate import Gate
from shigoto.notify.rules import Rule, checked_rules
from shigoto.notify.targets import Target, Undeliverable, Undelivered
from shigoto.options import TaskOptions
from shigoto.outcomes import Fail
from shigoto.retry import Retry

if TYPE_CHECKING:
    from shigoto.app import Shigoto

NAMES = UUID("6f1c7be4-52c1-5d8e-9a53-1d7f0c6b8a10")  # the space in which messages have their names
GRACE: Millis = 2_000  # after a window, for what has happened in it and is not committed yet
PAGE = 500
PATIENTLY = Retry.exponential(retries=15, base=5, factor=2, cap=3_600)
# All of them, lest the defaults of an app be meant for them: that would keep it from starting, or hide why a message
# was not delivered.
OPTIONS = TaskOptions(
    queue=QUEUE,
    retry=PATIENTLY,
    executor="thread",
    timeout=None,
    soft_timeout=None,
    exclusive=False,
    encrypt=False,
)
STRANGE = 9  # attempts for which a rule that is not known here may be known to others: about twenty minutes


class Span(Struct, frozen=True):
    """A window that is told of as a whole; `beyond` is how many of it were told before."""

    start: Millis
    end: Millis
    subject: str | None
    beyond: int


class Notifier:
    """The rules of an app, and the two tasks that carry them out."""

    def __init__(self, app: "Shigoto", rules: object) -> None:
        self._app = app
        self.rules = checked_rules(rules)
        self._by_name = {rule.name: rule for rule in self.rules}
        self._gates = {target.key: Gate() for rule in self.rules for target in rule.targets}
        _declare(app, self)

    def check(self) -> None:
        """Raise DeclarationError for all that targets miss in the environment, together. For whoever delivers."""
        problems: dict[str, None] = {}
        for rule in self.rules:
            for target in rule.targets:
                try:
                    target.check()
                except DeclarationError as error:
                    problems[f"rule {rule.name!r}: {error}"] = None
        if problems:
            raise DeclarationError("\n".join(problems))

    def notice(self, told: Notice) -> int:
        """See which rules a notice meets, and store a job for each message; how many there are."""
        specs = [spec for rule in self.rules if rule.matches(told) for spec in messages(rule, told)]
        if specs:
            self._app.engine.run(self._app.engine.enqueue_many(specs))
        return len(specs)

    def deliver(
        self, id: UUID, rule: str, target: str, notice: Notice, span: Span | None, attempt: int
    ) -> str:
        """Deliver one message. What it tells of is looked up now, so that nothing of a job is stored twice."""
        declared = self._by_name.get(rule)
        to = None if declared is None else _find(declared, target)
        if declared is None or to is None:
            if attempt < STRANGE:
                raise Undelivered(f"This worker's app does not have the rule {rule!r} with this target.")
            return f"not delivered: the app no longer has the rule {rule!r} with this target"
        event = self._event(id, declared, notice, span)
        if event is None:
            return "nothing more to tell"
        try:
            with self._gates[target].entered():
                to.deliver(event)
        except Undeliverable as error:
            raise Fail(str(error)) from None
        return f"delivered by {target.partition('-')[0]}"

    def looks(self, now: Millis, oldest: dict[str, Millis]) -> list[JobSpec]:
        """The notices of queues that have waited for too long, given since when each waits. One in a window."""
        found: list[JobSpec] = []
        for rule in self.rules:
            for queue, since in oldest.items():
                notice = Notice(kind="old", subject=queue, at=now, since=since)
                if queue != QUEUE and rule.matches(notice):
                    id = uuid5(NAMES, f"old\0{rule.name}\0{queue}\0{rule.window}\0{now // rule.window}")
                    found.append(as_job(id, notice))
        return found

    @property
    def shortest_limit(self) -> Millis | None:
        """How soon a queue may be too old, for whoever looks; None if nobody wants to know."""
        return min((rule.limit for rule in self.rules if rule.kind == "old"), default=None)

    def _event(self, id: UUID, rule: Rule, notice: Notice, span: Span | None) -> Event | None:
        if span is None:
            return self._told(id, rule, notice)
        counts = Counter(each.subject for each in self._seen(rule, span))
        total = counts.total() - span.beyond
        if total <= 0:
            return None
        return Event(
            id=id,
            kind=rule.kind,
            rule=rule.name,
            subject=span.subject or "",
            at=to_datetime(notice.at),
            count=total,
            since=to_datetime(span.start),
            until=to_datetime(span.end),
            tasks={} if span.subject is not None else dict(counts),
        )

    def _told(self, id: UUID, rule: Rule, notice: Notice) -> Event:
        job = self._job(notice.job)
        return Event(
            id=id,
            kind=rule.kind,
            rule=rule.name,
            subject=notice.subject,
            at=to_datetime(notice.at),
            count=notice.count,
            since=None if notice.since is None else to_datetime(notice.since),
            job=notice.job,
            queue=notice.queue,
            tenant=None if job is None else job.tenant or None,
            attempt=None if job is None else job.attempt,
            failure=notice.failure,
            error=None if job is None or job.error is None else cut(without_key(job.error)),
        )

    def _job(self, id: UUID | None) -> Job | None:
        if id is None:
            return None
        engine = self._app.engine
        [job] = engine.run(engine.get([id]))
        return job

    def _seen(self, rule: Rule, span: Span) -> Iterator[Notice]:
        """What the rule is about of all that happened in the span."""
        engine, before = self._app.engine, None
        while True:
            wanted = JobFilter(task=NOTICE, since=span.start, before=before, limit=PAGE)
            page = engine.run(engine.find(wanted))
            for job in page:
                notice = _read(job.payload)
                if notice is None:
                    continue
                inside = span.start <= notice.at < span.end
                if inside and rule.matches(notice) and span.subject in (None, notice.subject):
                    yield notice
            if len(page) < PAGE:
                return
            before = page[-1].number


def _declare(app: "Shigoto", notifier: Notifier) -> None:
    """Make tasks of the two. Every process that has the app makes them again, so they can run in any of them, although
    they are made in here: that is what their names are to say."""

    def notice(
        kind: Kind,
        subject: str,
        at: int,
        queue: str | None = None,
        job: UUID | None = None,
        failure: FailureKind | None = None,
        since: int | None = None,
        count: int = 1,
    ) -> int:
        """See which rules a notice meets."""
        told = Notice(
            kind=kind, subject=subject, at=at, queue=queue, job=job, failure=failure, since=since, count=count
        )
        return notifier.notice(told)

    def deliver(ctx: Context, rule: str, target: str, notice: Notice, span: Span | None = None) -> str:
        """Deliver one message of a rule to one of its targets."""
        return notifier.deliver(ctx.job_id, rule, target, notice, span, ctx.attempt)

    for name, fn in ((NOTICE, notice), (DELIVER, deliver)):
        fn.__qualname__ = fn.__name__
        options: TaskOptions = {**OPTIONS, "name": name}
        app.task(**options)(fn)


def messages(rule: Rule, notice: Notice) -> Iterator[JobSpec]:
    """The jobs of the messages that a notice leads to by a rule; some of them others have led to before."""
    if rule.digest is not None:
        yield from _jobs(rule, notice, _window(notice.at, rule.digest, None, 0))
    elif not rule.window:
        yield from _jobs(rule, notice, None, event=f"{notice.job or notice.subject}\0{notice.at}")
    else:
        start = notice.at - notice.at % rule.window
        yield from _jobs(rule, notice, None, event=f"{notice.subject}\0{rule.window}\0{start}")
        if rule.kind == "failed":
            yield from _jobs(rule, notice, _window(notice.at, rule.window, notice.subject, 1))


def _jobs(rule: Rule, notice: Notice, span: Span | None, *, event: str = "") -> Iterator[JobSpec]:
    what = event if span is None else f"{span.subject}\0{span.start}\0{span.end}"
    for target in rule.targets:
        payload: dict[str, Any] = {"rule": rule.name, "target": target.key, "notice": notice}
        if span is not None:
            payload["span"] = span
        yield JobSpec(
            id=uuid5(NAMES, f"{rule.kind}\0{rule.name}\0{target.key}\0{what}"),
            payload=json.encode(payload).decode(),
            task=DELIVER,
            queue=QUEUE,
            run_at=None if span is None else span.end + GRACE,
            max_failures=PATIENTLY.max_failures,
        )


def _window(at: Millis, length: Millis, subject: str | None, beyond: int) -> Span:
    start = at - at % length
    return Span(start, start + length, subject, beyond)


def _read(payload: str) -> Notice | None:
    """The notice; None for what somebody else has stored under that name: it must not silence the others."""
    try:
        return json.decode(payload, type=Notice)
    except MsgspecError:
        return None


def _find(rule: Rule, key: str) -> Target | None:
    return next((target for target in rule.targets if target.key == key), None)
