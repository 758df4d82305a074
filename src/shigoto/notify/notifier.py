"""Notifications: from a notice of the store to deliveries, each of which is a job.

    the store ──shigoto.notice──► notice: which rules? ──shigoto.deliver──► deliver: mail, webhook, log, a function
                                    │
                                    └──shigoto.rules.…──► the same question to the rules of every other app

All are ordinary jobs, so a worker that dies between two of these steps loses nothing, and what cannot be delivered now
is tried again. That nothing is told twice follows from ids: the job of a message is named after the rule, the target
and what it tells of, which is one event, or all of a subject in one window. Stored again, it is the same job.

Any worker whose app has rules takes a notice, and apps that share a store may have different ones, as an app has while
a new release is rolled out. So each set of rules has a task of its own, named after its fingerprint, by which workers
tell that they have it. Whoever takes a notice forwards it to all other sets that are there. Messages are not named
after the set: a rule that two of them have tells once.

Few deliveries at a time go to one target (`DeliverySlots`): one that is slow, or silent, must not keep the threads of a
worker from its jobs.
"""

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from random import Random, uniform
from threading import Condition
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID, uuid5

from msgspec import MsgspecError, Struct, json

from shigoto.context import Context, Fail, RetryLater, Snooze
from shigoto.model.errors import DeclarationError
from shigoto.model.job import FailureKind, JobFilter, JobSpec
from shigoto.model.notice import DELIVER, MAX_FAILURES, NOTICE, QUEUE, RULES, Kind, Notice, as_job
from shigoto.model.secrets import without_key
from shigoto.model.time import Millis, to_datetime
from shigoto.notify.notification import Notification, cut
from shigoto.notify.rules import Rule, checked_rules, fingerprint_of
from shigoto.notify.targets import AskedToWait, Undeliverable, Undelivered
from shigoto.options import TaskOptions
from shigoto.retry import Retry

if TYPE_CHECKING:
    from shigoto.app import Shigoto

NAMES = UUID("6f1c7be4-52c1-5d8e-9a53-1d7f0c6b8a10")  # the space in which messages have their names
GRACE: Millis = 2_000  # after a window, for what has happened in it and is not committed yet
PAGE = 500
PATIENTLY = Retry.exponential(retries=MAX_FAILURES - 1, base=5, factor=2, cap=3_600)
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
# Attempts for which a rule that is not known here may be known to others: about twenty minutes.
UNKNOWN_RULE_ATTEMPTS = 9
# For a worker that has the rules to come back; what a release that is gone was to be told must not wait for ever.
EXPIRES: Millis = 86_400_000
# Seconds for which a message is left to those who have its rule: a twentieth of its age. A thousand times is the most
# that a job may be put off, and those who have the rule may be busy for hours.
SOONEST_LEFT, LATEST_LEFT, SHARE_LEFT = 1.0, 60.0, 20_000

MOST_AT_ONCE = 2  # at a time, to one target and from one process
MOST_WAITING = 1  # who waits for one of them to end: with four threads, one is left for jobs
LONGEST_WAIT = 0.5  # seconds that it waits, or that they may take before nobody waits
SHORT_WAIT = 0.02  # seconds that any number may wait, if all are through by then
REST_TIMES = 4.0  # times that a delivery took which has failed
# Seconds after which the next in line and the last of it come again, or after half of that.
SOONEST, LATEST = 2.0, 300.0


class DigestWindow(Struct, frozen=True):
    """A window that is told of as a whole; `beyond` is how many of it were told before."""

    start: Millis
    end: Millis
    subject: str | None
    beyond: int


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job of `shigoto.deliver` carries. `fingerprint` is the rule's, `rules` that of the set that it is of."""

    rule: str
    target: str
    notice: Notice
    span: DigestWindow | None = None
    fingerprint: str = ""
    rules: str = ""


class Notifier:
    """The rules of an app, and the three tasks that carry them out."""

    def __init__(self, app: "Shigoto", rules: object) -> None:
        self._app = app
        self.rules = checked_rules(rules)
        self.fingerprint = fingerprint_of(self.rules)
        self.task = f"{RULES}{self.fingerprint}"
        self._by_name = {rule.name: rule for rule in self.rules}
        self._by_fingerprint = {rule.fingerprint: rule for rule in self.rules}
        self._slots = {target.key: DeliverySlots() for rule in self.rules for target in rule.targets}
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

    def notice(self, id: UUID, told: Notice) -> int:
        """See which rules the notice of this id meets, store a job for each message, and hand it to all other sets of
        rules; how many messages there are."""
        return self._store(self.messages(id, told), self._forwarded(id, told))

    def meet(self, id: UUID, told: Notice) -> int:
        """The same for a notice that was forwarded: these rules alone are asked."""
        return self._store(self.messages(id, told), [])

    def messages(self, id: UUID, told: Notice) -> list[JobSpec]:
        met = (rule for rule in self.rules if rule.matches(told))
        return [spec for rule in met for spec in messages(rule, id, told, self.fingerprint)]

    def deliver(self, id: UUID, message: Message, attempt: int, failures: int) -> str:
        """Deliver one message, after so many failures. What it tells of is looked up now, so that nothing of a job is
        stored twice."""
        declared = self._declared(message)
        targets = () if declared is None else declared.targets
        to = next((target for target in targets if target.key == message.target), None)
        if declared is None or to is None:
            if attempt < UNKNOWN_RULE_ATTEMPTS:
                raise Undelivered(
                    f"This worker's app does not have the rule {message.rule!r} with this target."
                )
            return f"not delivered: the app no longer has the rule {message.rule!r} with this target"
        event = self._event(id, declared, message.notice, message.span)
        if event is None:
            return "nothing more to tell"
        try:
            with self._slots[message.target].entered():
                to.deliver(event)
        except Undeliverable as error:
            raise Fail(str(error)) from None
        except AskedToWait as asked:
            raise RetryLater(_pause(asked.wait, failures), str(asked)) from None
        return f"delivered by {message.target.partition('-')[0]}"

    def looks(self, now: Millis, oldest: dict[str, Millis]) -> list[JobSpec]:
        """The notices of queues that have waited for too long, given since when each waits. One in a window."""
        found: list[JobSpec] = []
        for rule in self.rules:
            for queue, since in oldest.items():
                notice = Notice(kind="old", subject=queue, at=now, since=since)
                if queue != QUEUE and rule.matches(notice):
                    # With the limit: one in another app that is longer must not find its notice spent.
                    what = f"{rule.name}\0{queue}\0{rule.limit}\0{rule.window}\0{now // rule.window}"
                    found.append(as_job(uuid5(NAMES, f"old\0{what}"), notice))
        return found

    @property
    def shortest_limit(self) -> Millis | None:
        """How soon a queue may be too old, for whoever looks; None if nobody wants to know."""
        return min((rule.limit for rule in self.rules if rule.kind == "old"), default=None)

    def _store(self, told: list[JobSpec], forwarded: list[JobSpec]) -> int:
        """All in one transaction: a notice that runs again finds all of it, or nothing."""
        if told or forwarded:
            self._app.engine.run(self._app.engine.enqueue_many([*told, *forwarded]))
        return len(told)

    def _forwarded(self, id: UUID, told: Notice) -> list[JobSpec]:
        """One job for each other set of rules that a worker has, named after the notice and the set."""
        engine = self._app.engine
        tasks = {task for worker in engine.run(engine.workers()) for task in worker.tasks}
        payload = json.encode({"id": id, "notice": told}).decode()
        return [
            JobSpec(
                id=uuid5(id, task),
                payload=payload,
                task=task,
                queue=QUEUE,
                expires_in=EXPIRES,
                max_failures=MAX_FAILURES,
            )
            for task in sorted(tasks)
            if task.startswith(RULES) and task != self.task
        ]

    def _declared(self, message: Message) -> Rule | None:
        """The rule of a message; one of its name if nobody has that very rule any more. Raises Snooze while others do:
        what is called the same in another app may choose, and count, something else."""
        same = self._by_fingerprint.get(message.fingerprint)
        if same is None and message.rules not in ("", self.fingerprint):
            self._leave_to_others(message)
        named = same or self._by_name.get(message.rule)
        return named if named is not None and named.kind == message.notice.kind else None

    def _leave_to_others(self, message: Message) -> None:
        """Raise Snooze if there is a worker that can be expected to take the message."""
        engine = self._app.engine
        now, workers = engine.run(engine.time()), engine.run(engine.workers())
        for worker in workers:
            lives = not worker.stopping and worker.lease_until > to_datetime(now)
            if lives and f"{RULES}{message.rules}" in worker.tasks:
                due = message.notice.at if message.span is None else message.span.end
                raise Snooze(
                    min(LATEST_LEFT, max(SOONEST_LEFT, (now - due) / SHARE_LEFT)) * uniform(1.0, 2.0)
                )

    def _event(self, id: UUID, rule: Rule, notice: Notice, span: DigestWindow | None) -> Notification | None:
        if span is None:
            return self._told(id, rule, notice)
        counts = Counter(each.subject for each in self._seen(rule, span))
        total = counts.total() - span.beyond
        if total <= 0:
            return None
        return Notification(
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

    def _told(self, id: UUID, rule: Rule, notice: Notice) -> Notification:
        engine, job = self._app.engine, None
        if notice.job is not None:
            [job] = engine.run(engine.get([notice.job]))
        return Notification(
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

    def _seen(self, rule: Rule, span: DigestWindow) -> Iterator[Notice]:
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
    """Make tasks of the three. Every process that has the app makes them again, so they can run in any of them,
    although they are made in here: that is what their names are to say."""

    def notice(
        ctx: Context,
        kind: Kind,
        subject: str,
        at: int,
        queue: str | None = None,
        job: UUID | None = None,
        failure: FailureKind | None = None,
        since: int | None = None,
        count: int = 1,
    ) -> int:
        """See which rules a notice meets, and hand it to those of other apps."""
        told = Notice(
            kind=kind, subject=subject, at=at, queue=queue, job=job, failure=failure, since=since, count=count
        )
        return notifier.notice(ctx.job_id, told)

    def rules(id: UUID, notice: Notice) -> int:
        """See which of these rules a notice meets."""
        return notifier.meet(id, notice)

    def deliver(
        ctx: Context,
        rule: str,
        target: str,
        notice: Notice,
        span: DigestWindow | None = None,
        fingerprint: str = "",
        rules: str = "",
    ) -> str:
        """Deliver one message of a rule to one of its targets."""
        message = Message(
            rule=rule, target=target, notice=notice, span=span, fingerprint=fingerprint, rules=rules
        )
        return notifier.deliver(ctx.job_id, message, ctx.attempt, ctx.failures)

    for name, fn in ((NOTICE, notice), (notifier.task, rules), (DELIVER, deliver)):
        fn.__qualname__ = fn.__name__
        options: TaskOptions = {**OPTIONS, "name": name}
        app.task(**options)(fn)


def messages(rule: Rule, id: UUID, notice: Notice, rules: str) -> Iterator[JobSpec]:
    """The jobs of the messages that the notice of this id leads to by a rule of this set; some of them others have led
    to before."""
    if rule.digest is not None:
        yield from _jobs(rule, notice, _window(notice.at, rule.digest, None, 0), rules=rules)
    elif not rule.window:
        # Workers may be of one name, and die in one instant.
        yield from _jobs(rule, notice, None, event=f"{notice.job or id}\0{notice.at}", rules=rules)
    else:
        start = notice.at - notice.at % rule.window
        event = f"{notice.subject}\0{rule.window}\0{start}\0{rule.choice}"
        yield from _jobs(rule, notice, None, event=event, rules=rules)
        if rule.kind == "failed":
            yield from _jobs(rule, notice, _window(notice.at, rule.window, notice.subject, 1), rules=rules)


def _jobs(
    rule: Rule, notice: Notice, span: DigestWindow | None, *, rules: str, event: str = ""
) -> Iterator[JobSpec]:
    """With what it chooses among: two rules of one name may count different things in one window."""
    what = event if span is None else f"{span.subject}\0{span.start}\0{span.end}\0{rule.choice}"
    for key in [target.key for target in rule.targets]:
        message = Message(
            rule=rule.name, target=key, notice=notice, span=span, fingerprint=rule.fingerprint, rules=rules
        )
        yield JobSpec(
            id=uuid5(NAMES, f"{rule.kind}\0{rule.name}\0{key}\0{what}"),
            payload=json.encode(message).decode(),
            task=DELIVER,
            queue=QUEUE,
            run_at=None if span is None else span.end + GRACE,
            max_failures=MAX_FAILURES,
        )


def _window(at: Millis, length: Millis, subject: str | None, beyond: int) -> DigestWindow:
    start = at - at % length
    return DigestWindow(start, start + length, subject, beyond)


def _read(payload: str) -> Notice | None:
    """The notice; None for what somebody else has stored under that name: it must not silence the others."""
    try:
        return json.decode(payload, type=Notice)
    except MsgspecError:
        return None


def _pause(asked: float, failures: int) -> float:
    """The larger of what a target asks for and our own: who says "in no time" would use up all attempts in a second."""
    return max(asked, (PATIENTLY.delay(failures, None, Random()) or 0) / 1000)


class DeliverySlots:
    """The deliveries of this process to one target: which of them may go now. Safe across threads.

    Deliveries are jobs like any other. If a server takes a connection and says nothing, each of them holds a thread
    for as long as there is patience, and a hundred failures would hold all threads for minutes; so would a thousand
    of 0.3 s each, if all that cannot go yet waited for half a second. So few at a time go to one target, one more
    waits, and nobody waits for those that take long; after one that has failed the target is left alone for a few
    times as long as that took. Only where all are through in a moment may a crowd wait: at a target that answers at
    once, to come again would take longer.

    Whoever is not let in comes again later, which counts as no failure; but no job is put off more than a thousand
    times, and one that is has failed (snoozed_out). So each is told to come when those before it will be through, by
    what the last delivery took. 5 000 messages that come at once, to a target that takes 0.3 s, are a line of 750 s:
    in a simulation where nobody waits for a slot each is put off four times, and the unluckiest nine. A target may
    become faster meanwhile, so nobody is sent away for more than five minutes: at 3 s each (two hours) the unluckiest
    is put off fifty times, and at 30 s (a day), the longest that mail may take, 370 times.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._begun: list[float] = []
        self._waiting = 0
        self._took = 0.0
        self._shut_until = 0.0
        self._taken_until = 0.0  # the end of the line of those who were told to come again

    @contextmanager
    def entered(self) -> Generator[None]:
        """Deliver in here. Raises Snooze if it is not the time."""
        with self._changed:
            self._wait()
            if self._is_shut() or self._is_full() or self._is_slow():
                raise Snooze(self._pause())
            at = monotonic()
            self._begun.append(at)
        try:
            yield
        except Undelivered:
            with self._changed:
                now = monotonic()
                self._shut_until = now + REST_TIMES * (now - at)
            raise
        finally:
            with self._changed:
                self._took = monotonic() - at
                self._begun.remove(at)
                self._changed.notify_all()

    def _wait(self) -> None:
        """Wait for a place, if there is none and it is worth a thread."""
        if self._is_shut() or self._is_slow() or not self._is_full():
            return
        if self._waiting < MOST_WAITING:
            patience = LONGEST_WAIT
        elif (self._waiting + 1) * self._step() <= SHORT_WAIT:
            patience = SHORT_WAIT
        else:
            return
        self._waiting += 1
        try:
            self._changed.wait_for(lambda: not self._is_full(), patience)
        finally:
            self._waiting -= 1

    def _pause(self) -> float:
        """Seconds until those before are through. Not a moment earlier than a second, or a line that is short would be
        asked for ever; and anything from the half to the whole, so that those who came together part ways."""
        now = monotonic()
        self._taken_until = min(max(now, self._taken_until) + self._step(), now + LATEST)
        ahead = max(SOONEST, self._taken_until - now)
        return max(0.0, self._shut_until - now) + ahead * uniform(0.5, 1.0)

    def _step(self) -> float:
        """Seconds by which each in line comes later than the one before: what the last has taken, or what those inside
        have until now, among the places that there are."""
        until_now = monotonic() - self._begun[0] if self._begun else 0.0
        return max(self._took, until_now) / MOST_AT_ONCE

    def _is_shut(self) -> bool:
        return self._shut_until > monotonic()

    def _is_full(self) -> bool:
        return len(self._begun) >= MOST_AT_ONCE

    def _is_slow(self) -> bool:
        return bool(self._begun) and monotonic() - self._begun[0] > LONGEST_WAIT
