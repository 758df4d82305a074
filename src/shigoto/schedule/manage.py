"""Schedules while the system runs: `app.schedules`, and the operations behind it.

Each change is one transaction: an operation reads the schedule, decides, and changes it if nobody else has done so
meanwhile.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Unpack
from uuid import UUID

from msgspec.structs import replace

from shigoto.app import Shigoto
from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Engine
from shigoto.enqueue import Call
from shigoto.model.errors import (
    OptionInvalid,
    ScheduleInvalid,
    ScheduleNotFound,
    ScheduleTaken,
    ShigotoError,
    StoreUnavailable,
    nearest,
)
from shigoto.model.ids import uuid7
from shigoto.model.schedule import (
    KEPT,
    Change,
    Firing,
    Schedule,
    ScheduleRecord,
    Status,
    TickEntry,
    TickOutcome,
    TickRecord,
)
from shigoto.model.secrets import masked_payload
from shigoto.model.text import plain_moment, plain_text, plain_whole, shown
from shigoto.model.time import Duration, Millis, to_datetime, to_millis
from shigoto.options import ScheduleOptions, check_name
from shigoto.queues import tick_within_limits
from shigoto.schedule.decide import counted, left_of, redefined, skipped, waits_for_pause, with_pause
from shigoto.schedule.declare import HEARD_WITHIN, Declared, Maker, checked_call
from shigoto.schedule.definition import (
    UNREADABLE,
    Definition,
    define,
    expect_future,
    expect_in_calendar,
    read,
    template,
    trouble_with,
    words_of,
    written,
)
from shigoto.schedule.fire import carried_out, fired
from shigoto.schedule.preview import upcoming
from shigoto.schedule.tick import Tick

TRIES = 10
MOST_BACKFILLED = 1_000
MOST_SHOWN = 10_000
TIMES = {"cron", "every", "at"}
ON_THE_WALL = {"gap", "fold"}  # what can be said of a cron expression only

Alter = Callable[[Schedule, Millis], Change | None]
"""What becomes of a schedule as of now; None if it stays as it is."""


def add_op(engine: Engine, name: str, definition: Definition, id: UUID) -> Op[Schedule]:
    """Store a new schedule, due from now on. Raises ScheduleTaken, ScheduleInvalid."""

    def steps() -> Steps[Schedule]:
        now = yield from engine.time().start()
        schedule = Schedule(
            id=id,
            name=name,
            definition=written(definition),
            look_at=expect_future(f"schedule {name!r}", definition, now),
            decided_to=now,
            created_at=now,
        )
        if not all((yield from engine.tick([Change(schedule=schedule, seen=0)]).start())):
            raise ScheduleTaken(f"There is a schedule {name!r} already. Update it, or choose another name.")
        return replace(schedule, revision=1)

    return Op(start=steps, rings=lambda _: True)


def alter_op(engine: Engine, name: str, alter: Alter) -> Op[Schedule]:
    """Change a schedule as it is at that moment. Raises ScheduleNotFound, and whatever `alter` does."""

    def steps() -> Steps[Schedule]:
        for _ in range(TRIES):
            now = yield from engine.time().start()
            schedule = yield from found(engine, name)
            change = alter(schedule, now)
            if change is None:
                return schedule
            if all((yield from engine.tick([change]).start())):
                return replace(change.schedule, revision=change.seen + 1)
        raise contended(name)

    return Op(start=steps, rings=lambda _: True)


def contended(name: str) -> StoreUnavailable:
    """Others were heard first, again and again."""
    return StoreUnavailable(f"The schedule {name!r} is changed by others all the time. Try again.")


def found(engine: Engine, name: str) -> Steps[Schedule]:
    """The schedule. Raises ScheduleNotFound."""
    wanted = _name(name)
    known = [] if wanted is None else (yield from engine.schedules([wanted]).start())
    if not known:
        names = [each.name for each in (yield from engine.schedules().start())]
        raise ScheduleNotFound(f"There is no schedule {shown(name)}.{nearest(name, names)}")
    return known[0]


def _name(given: object) -> str | None:
    """The name, or None if no schedule can have it. Raises ScheduleInvalid for what is no text."""
    name = plain_text(given)
    if name is None:
        raise ScheduleInvalid(f"The name of a schedule must be a text, not {shown(given)}.", "name")
    try:
        return check_name(name, "The schedule")
    except OptionInvalid:
        return None


def definition_op(engine: Engine, name: str) -> Op[Definition]:
    """All that was said about a schedule. Raises ScheduleNotFound."""

    def steps() -> Steps[Definition]:
        return read((yield from found(engine, name)).definition)

    return Op(start=steps, mode="read")


def remove_op(engine: Engine, name: str) -> Op[None]:
    """Forget a schedule with its history. Raises ScheduleNotFound, or ScheduleTaken if living code declares it."""

    def steps() -> Steps[None]:
        now = yield from engine.time().start()
        schedule = yield from found(engine, name)
        expect_free(schedule, now, "removed")
        yield from engine.remove_schedules([name]).start()

    return Op(start=steps)


def expect_free(schedule: Schedule, now: Millis, what: str) -> None:
    """Raise ScheduleTaken if living code declares the schedule: it would be as before at its next start."""
    if schedule.origin and schedule.declared_at >= now - HEARD_WITHIN:
        raise ScheduleTaken(
            f"The schedule {schedule.name!r} is declared by {schedule.origin}, and can be {what} only there."
            " You can pause it."
        )


def updated(schedule: Schedule, definition: Definition, now: Millis) -> Change:
    """Another definition, by somebody's will. Raises ScheduleTaken, or ScheduleInvalid if it would never be due."""
    expect_free(schedule, now, "changed")
    change = redefined(schedule, definition, now)
    if change.schedule.look_at is None:
        expect_future(f"schedule {schedule.name!r}", definition, now)
    return change


def paused(schedule: Schedule, now: Millis) -> Change | None:
    """Ticks are suppressed from now on; those before are decided as usual, by whoever looks next."""
    if schedule.paused:
        return None
    return Change(schedule=replace(schedule, paused_at=now), seen=schedule.revision)


def resumed(schedule: Schedule, now: Millis) -> Change | None:
    """It fires again. What was due before the pause, or before it has failed, is decided by whoever looks next; so are
    then the ticks that came in the pause, which are suppressed."""
    if not schedule.paused and not schedule.failed:
        return None
    definition = read(schedule.definition)
    going = replace(schedule, failed=False, errors=0, error=None, paused_at=None)
    if schedule.paused_at is not None and waits_for_pause(schedule, definition, now):
        going = replace(going, pauses=with_pause(schedule.pauses, (schedule.paused_at, now), definition))
    elif schedule.paused:
        passed = skipped(schedule, definition, now)
        if passed.entries:
            return carried_out(going, definition, passed, None)
    look_at = definition.next_after(min(schedule.decided_to, now))
    return Change(schedule=replace(going, look_at=look_at), seen=schedule.revision)


def run_now_op(engine: Engine, name: str, maker: Maker | None) -> Op[UUID]:
    """Store a job now, beside the ticks, and tell its id. Raises ScheduleNotFound, ScheduleInvalid, or
    QueueFull."""

    def steps() -> Steps[UUID]:
        for _ in range(TRIES):
            now = yield from engine.time().start()
            schedule = yield from found(engine, name)
            definition = read(schedule.definition)
            known = yield from engine.history(name, before=now + KEPT, limit=KEPT).start()
            taken, ahead = {entry.at for entry in known}, range(now, now + 2 * KEPT)
            # The first instant at which nothing is written down, nor ever will be for a tick.
            at = next(at for at in ahead if at not in taken and definition.next_after(at - 1) != at)
            entry = TickEntry(at=at, outcome=TickOutcome.RUN_NOW, decided_at=now)
            change = _with(schedule, [fired(schedule, definition, entry, maker)])
            if all((yield from tick_within_limits(engine, [change]).start())):
                return (yield from _jobs(engine, schedule, [at]))[0]
        raise contended(name)

    return Op(start=steps, rings=lambda _: True)


def backfill_op(engine: Engine, name: str, since: Millis, to: Millis, maker: Maker | None) -> Op[list[UUID]]:
    """Fire what has not fired of the ticks from `since` to `to`, both included, and tell the jobs.

    Asked for again, it does nothing more, as far back as there are entries, or jobs are kept. Raises ScheduleNotFound,
    ScheduleInvalid, or QueueFull if there is no room for all of them.
    """

    def steps() -> Steps[list[UUID]]:
        for _ in range(TRIES):
            now = yield from engine.time().start()
            schedule = yield from found(engine, name)
            definition = read(schedule.definition)
            wanted = _few(name, definition, since, min(to, now))
            known = yield from engine.history(name, limit=2 * KEPT).start()
            done = {entry.at for entry in known if entry.outcome.fires}
            missing = [at for at in wanted if at not in done]
            if not missing:
                return []
            entries = [TickEntry(at=at, outcome=TickOutcome.BACKFILLED, decided_at=now) for at in missing]
            firings = [fired(schedule, definition, entry, maker) for entry in entries]
            stretches = [each for each in known if each.until and any(map(each.spans, missing))]
            before = {
                each.at for each in known if each.at in done and each.outcome is not TickOutcome.RUN_NOW
            }
            parts = {each.at: _left(definition, each, missing, before) for each in stretches}
            left = [Firing(entry=part, known=part.count) for some in parts.values() for part in some or ()]
            counts = Counter(schedule.counts) - _undone(known, missing, parts)
            change = replace(
                _with(replace(schedule, stretch=None, counts=dict(counts)), firings, left),
                forgets=tuple(at for at, some in parts.items() if some == [] and at not in missing),
            )
            if all((yield from tick_within_limits(engine, [change]).start())):
                return (yield from _jobs(engine, schedule, missing))
        raise contended(name)

    return Op(start=steps, rings=bool)


def _left(
    definition: Definition, stretch: TickEntry, missing: Sequence[Millis], before: Collection[Millis]
) -> list[TickEntry] | None:
    """What stays written down of a stretch (`left_of`). None, if it tells of other ticks and stays as it is: but where
    one that is filled in has the place in the history at which it begins, it gives that up."""
    left = left_of(definition, stretch, missing, before)
    if left is not None or stretch.at not in missing:
        return left
    return [replace(stretch, at=stretch.at + 1, count=stretch.count - 1)] if stretch.count > 1 else []


def _undone(
    known: Sequence[TickEntry], missing: Sequence[Millis], parts: Mapping[Millis, list[TickEntry] | None]
) -> Counter[str]:
    """How many ticks are no longer what was written down of them, by outcome: those that are filled in, by themselves
    or out of an entry of which `parts` are left."""
    undone = Counter[str]()
    for entry in known:
        left = parts.get(entry.at)
        if entry.until is None and not entry.outcome.fires and entry.at in missing:
            undone[entry.outcome] += entry.count
        elif entry.until is not None and left is not None:
            undone[entry.outcome] += entry.count - sum(part.count for part in left)
    return undone


def _jobs(engine: Engine, schedule: Schedule, ticks: Sequence[Millis]) -> Steps[list[UUID]]:
    """The jobs that stand for ticks, which are others than usual where a unique key says so."""
    entries = yield from engine.history(schedule.name, before=ticks[-1] + 1, limit=2 * KEPT).start()
    stored = {entry.at: entry.job for entry in entries}
    return [stored.get(at) or schedule.job_id(at) for at in ticks]


def _few(name: str, definition: Definition, since: Millis, to: Millis) -> list[Millis]:
    """The ticks from `since` to `to`. Raises ScheduleInvalid if these are too many."""
    end = to if definition.until is None else min(to, definition.until)
    ticks = takewhile(lambda at: at <= end, definition.recurrence.after(since - 1))
    wanted = list(islice(ticks, MOST_BACKFILLED + 1))
    if len(wanted) > MOST_BACKFILLED:
        raise ScheduleInvalid(
            f"schedule {name!r}: these are more than {MOST_BACKFILLED} ticks, the most that are filled in at a time."
            " Choose a shorter time.",
            "to",
        )
    return wanted


def _with(schedule: Schedule, firings: Sequence[Firing], left: Sequence[Firing] = ()) -> Change:
    changed = replace(schedule, counts=counted(schedule, [firing.entry for firing in firings]))
    return Change(schedule=changed, seen=schedule.revision, firings=(*left, *firings))


class Schedules:
    """The schedules of a store, and what can be done to them; each verb has an async twin that begins with `a`.

        app.schedules.add("report", report.call("weekly"), cron="0 7 * * MON", tz="Europe/Berlin")
        app.schedules.pause("report")

    Raises ScheduleNotFound for a name that is not known, ScheduleInvalid (with the `field`) for what cannot be meant,
    and ScheduleTaken for a name that is another's.
    """

    def __init__(self, app: Shigoto, engine: Engine | None = None) -> None:
        self._app = app
        self._own = engine  # another way to the store than the app's

    @property
    def _engine(self) -> Engine:
        return self._app.engine if self._own is None else self._own

    def add(
        self, name: str, call: Call[Any], *, cron: str | None = None, every: Duration | str | None = None,
        at: datetime | None = None, **options: Unpack[ScheduleOptions],
    ) -> ScheduleRecord:  # fmt: skip
        """Have a call made again and again, or once: every tick is one job."""
        return self._engine.run(self._add_op(name, call, cron=cron, every=every, at=at, **options))

    async def aadd(
        self, name: str, call: Call[Any], *, cron: str | None = None, every: Duration | str | None = None,
        at: datetime | None = None, **options: Unpack[ScheduleOptions],
    ) -> ScheduleRecord:  # fmt: skip
        """Have a call made again and again, or once; see `add`."""
        return await self._engine.arun(self._add_op(name, call, cron=cron, every=every, at=at, **options))

    def update(
        self, name: str, *, call: Call[Any] | None = None, cron: str | None = None,
        every: Duration | str | None = None, at: datetime | None = None, **options: Unpack[ScheduleOptions],
    ) -> ScheduleRecord:  # fmt: skip
        """Change what is named, and leave the rest: from now on. What is declared in code is changed there."""
        return self._engine.run(self._update_op(name, call, cron=cron, every=every, at=at, **options))

    async def aupdate(
        self, name: str, *, call: Call[Any] | None = None, cron: str | None = None,
        every: Duration | str | None = None, at: datetime | None = None, **options: Unpack[ScheduleOptions],
    ) -> ScheduleRecord:  # fmt: skip
        """Change what is named; see `update`."""
        return await self._engine.arun(self._update_op(name, call, cron=cron, every=every, at=at, **options))

    def remove(self, name: str) -> None:
        """Forget a schedule with its history; its jobs stay."""
        self._engine.run(remove_op(self._engine, name))

    async def aremove(self, name: str) -> None:
        """Forget a schedule; see `remove`."""
        await self._engine.arun(remove_op(self._engine, name))

    def pause(self, name: str) -> ScheduleRecord:
        """Suppress its ticks from now until it is resumed; they are written down, and not made up for."""
        return self._engine.run(self._alter_op(name, paused))

    async def apause(self, name: str) -> ScheduleRecord:
        """Suppress its ticks; see `pause`."""
        return await self._engine.arun(self._alter_op(name, paused))

    def resume(self, name: str) -> ScheduleRecord:
        """Let it fire again from now on; one that has failed tries again what is due, as far as it catches up."""
        return self._engine.run(self._alter_op(name, resumed))

    async def aresume(self, name: str) -> ScheduleRecord:
        """Let it fire again; see `resume`."""
        return await self._engine.arun(self._alter_op(name, resumed))

    def run_now(self, name: str) -> UUID:
        """Store a job of it now, beside its ticks, and tell its id."""
        return self._engine.run(self._run_now_op(name))

    async def arun_now(self, name: str) -> UUID:
        """Store a job of it now; see `run_now`."""
        return await self._engine.arun(self._run_now_op(name))

    def backfill(self, name: str, since: datetime, to: datetime) -> list[UUID]:
        """Fire those of its ticks from `since` to `to` that have not fired, and tell their jobs.

        Twice is once, as far back as the history goes; beyond, as long as the store keeps the jobs.
        """
        return self._engine.run(self._backfill_op(name, since, to))

    async def abackfill(self, name: str, since: datetime, to: datetime) -> list[UUID]:
        """Fire ticks that have not fired; see `backfill`."""
        return await self._engine.arun(self._backfill_op(name, since, to))

    def get(self, name: str) -> ScheduleRecord:
        """One schedule."""
        return self._engine.run(self._get_op(name))

    async def aget(self, name: str) -> ScheduleRecord:
        """One schedule."""
        return await self._engine.arun(self._get_op(name))

    def all(self) -> list[ScheduleRecord]:
        """Every schedule of the store, by name."""
        return self._engine.run(self._list_op())

    async def aall(self) -> list[ScheduleRecord]:
        """Every schedule of the store, by name."""
        return await self._engine.arun(self._list_op())

    def preview(
        self, name: str, *, since: datetime | None = None, to: datetime | None = None, limit: int = 10
    ) -> list[datetime]:
        """When its ticks are, in its own time zone: from `since`, or later than now, to `to`, at most `limit`."""
        return self._engine.run(self._preview_op(name, since, to, limit))

    async def apreview(
        self, name: str, *, since: datetime | None = None, to: datetime | None = None, limit: int = 10
    ) -> list[datetime]:
        """When its next ticks are; see `preview`."""
        return await self._engine.arun(self._preview_op(name, since, to, limit))

    def history(self, name: str, *, before: datetime | None = None, limit: int = 100) -> list[TickRecord]:
        """What became of its ticks, the newest first; the next page is the one `before=` the last of this one."""
        return self._engine.run(self._history_op(name, before, limit))

    async def ahistory(
        self, name: str, *, before: datetime | None = None, limit: int = 100
    ) -> list[TickRecord]:
        """What became of its ticks; see `history`."""
        return await self._engine.arun(self._history_op(name, before, limit))

    def _add_op(self, name: str, call: Call[Any], **words: Any) -> Op[ScheduleRecord]:
        name = check_name(name, "The schedule")
        new = define(f"schedule {name!r}", **self._job_of(name, call), **words)
        return _shown(self._engine, add_op(self._engine, name, new, uuid7()))

    def _update_op(self, name: str, call: Call[Any] | None, **words: Any) -> Op[ScheduleRecord]:
        said = {word: value for word, value in words.items() if value is not None or word not in TIMES}
        said |= {} if call is None else self._job_of(name, call)
        replaced = set[str]()
        if said.keys() & TIMES:
            replaced = TIMES if "cron" in said else TIMES | ON_THE_WALL

        def alter(schedule: Schedule, now: Millis) -> Change:
            stored = words_of(read(schedule.definition))
            kept = {word: value for word, value in stored.items() if word not in replaced}
            wanted: dict[str, Any] = {**kept, **said}
            return updated(schedule, define(f"schedule {name!r}", **wanted), now)

        return self._alter_op(name, alter)

    def _alter_op(self, name: str, alter: Alter) -> Op[ScheduleRecord]:
        return _shown(self._engine, alter_op(self._engine, name, alter))

    def _run_now_op(self, name: str) -> Op[UUID]:
        return run_now_op(self._engine, name, self._maker(name))

    def _backfill_op(self, name: str, since: datetime, to: datetime) -> Op[list[UUID]]:
        first, last = _instant("since", since), _instant("to", to)
        if last < first:
            raise ScheduleInvalid(
                f"to must not lie before since, but {to.isoformat()} lies before {since.isoformat()}. Swap them.",
                "to",
            )
        return backfill_op(self._engine, name, first, last, self._maker(name))

    def _get_op(self, name: str) -> Op[ScheduleRecord]:
        def steps() -> Steps[ScheduleRecord]:
            now = yield from self._engine.time().start()
            return record((yield from found(self._engine, name)), now)

        return Op(start=steps, mode="read")

    def _list_op(self) -> Op[list[ScheduleRecord]]:
        def steps() -> Steps[list[ScheduleRecord]]:
            now = yield from self._engine.time().start()
            return [record(each, now) for each in (yield from self._engine.schedules().start())]

        return Op(start=steps, mode="read")

    def _preview_op(
        self, name: str, since: datetime | None, to: datetime | None, limit: int
    ) -> Op[list[datetime]]:
        after = None if since is None else _instant("since", since) - 1
        end, most = None if to is None else _instant("to", to), _most(limit)

        def steps() -> Steps[list[datetime]]:
            schedule = yield from found(self._engine, name)
            now = yield from self._engine.time().start()
            return upcoming(read(schedule.definition), now if after is None else after, end, most)

        return Op(start=steps, mode="read")

    def _history_op(self, name: str, before: datetime | None, limit: int) -> Op[list[TickRecord]]:
        until, most = None if before is None else _instant("before", before), _most(limit)

        def steps() -> Steps[list[TickRecord]]:
            yield from found(self._engine, name)
            entries = yield from self._engine.history(name, before=until, limit=most).start()
            return [_told(each) for each in entries]

        return Op(start=steps, mode="read")

    def _job_of(self, name: str, call: Call[Any]) -> dict[str, Any]:
        checked = checked_call(f"schedule {name!r}", call)
        if checked.route.app is not self._app:
            raise ScheduleInvalid(
                f"schedule {name!r}: {call!r} belongs to another app: add it there.", "call"
            )
        job = template(checked.spec(uuid7()))
        return {"task": job.task, "job": job}

    def _maker(self, name: str) -> Maker | None:
        self._app.load()
        declared = self._app.declared.get(plain_text(name) or "")
        return None if declared is None else _explaining(declared)


def _explaining(declared: Declared) -> Maker:
    """What makes the calls of a schedule; what its code raises is told as such to whoever asks for a job."""

    def call(tick: Tick) -> Call[Any]:
        try:
            return declared.call(tick)
        except ShigotoError:
            raise
        except Exception as error:
            raise ScheduleInvalid(
                f"schedule {declared.name!r}: {declared.origin} could not make the job for {tick.at.isoformat()}:"
                f" {shown(error)}. Mend that code, and ask again.",
                "call",
            ) from error

    return call


def record(schedule: Schedule, now: Millis) -> ScheduleRecord:
    """The schedule as people see it; one that cannot be read does not hide the others."""
    trouble = trouble_with(schedule)
    try:
        given = read(schedule.definition)
        when = given.when
    except ScheduleInvalid:
        given, when = UNREADABLE, "?"
    return ScheduleRecord(
        name=schedule.name,
        when=when,
        tz=given.zone,
        task=given.task,
        queue=None if given.job is None else given.job.queue,
        payload=None if given.job is None else masked_payload(given.job.payload, given.job.meta),
        status=_status(schedule, now, readable=trouble is None),
        next_at=_next_at(schedule, given, now),
        origin=schedule.origin or None,
        catch_up=given.catch_up,
        catch_up_most=given.most,
        catch_up_within=None if given.within is None else timedelta(milliseconds=given.within),
        overlap=given.overlap,
        jitter=timedelta(milliseconds=given.jitter),
        until=None if given.until is None else to_datetime(given.until),
        last_job=schedule.job,
        errors=schedule.errors,
        error=trouble or schedule.error,
        counts=schedule.counts,
        created_at=to_datetime(schedule.created_at),
        when_failed=given.when_failed,
    )


def _next_at(schedule: Schedule, given: Definition, now: Millis) -> datetime | None:
    """The first tick that is not decided yet, which may be one that waits, or is tried again.

    `look_at` is no answer: while a tick waits, somebody looks more often than the schedule is due.
    """
    if schedule.look_at is None:
        return None
    try:
        due = given.next_after(min(schedule.decided_to, now))
    except (KeyError, ValueError, OSError):  # nobody here knows its time zone, and looking is no error
        due = schedule.look_at
    return None if due is None else to_datetime(due)


def _status(schedule: Schedule, now: Millis, *, readable: bool) -> Status:
    if schedule.failed:
        return "failed"
    if schedule.paused:
        return "paused"
    if schedule.origin and schedule.declared_at < now - HEARD_WITHIN:
        return "undeclared"
    if not readable and schedule.look_at is not None:
        return "unreadable"
    return "ended" if schedule.look_at is None else "active"


def _told(entry: TickEntry) -> TickRecord:
    return TickRecord(
        at=to_datetime(entry.at),
        outcome=entry.outcome,
        decided_at=to_datetime(entry.decided_at),
        job=entry.job,
        until=None if entry.until is None else to_datetime(entry.until),
        count=entry.count,
    )


def _shown(engine: Engine, op: Op[Schedule]) -> Op[ScheduleRecord]:
    def steps() -> Steps[ScheduleRecord]:
        schedule = yield from op.start()
        return record(schedule, (yield from engine.time().start()))

    return Op(start=steps, rings=lambda _: True)


def _most(limit: object) -> int:
    most = plain_whole(limit)
    if most is None or not 1 <= most <= MOST_SHOWN:
        raise ScheduleInvalid(
            f"limit must be a whole number from 1 to {MOST_SHOWN}, not {shown(limit)}.", "limit"
        )
    return most


def _instant(field: str, given: object) -> Millis:
    moment = plain_moment(given)
    if moment is None or moment.tzinfo is None:
        raise ScheduleInvalid(f"{field} must be a datetime with a time zone, not {shown(given)}.", field)
    expect_in_calendar(field, moment, field)
    return to_millis(moment)
