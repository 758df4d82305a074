"""Decisions about a schedule: which ticks fire, what is recorded of the others, when it is due again. Pure.

    decide          what becomes of the ticks that are due
    redefined       another definition: nothing that was due before vanishes without an entry
    after_failure   its job cannot be made or stored: it is tried again, later each time, and fails after some tries

All of them are told the time and the definition. Of all schedulers that decide the same at once the store hears one
(`engine.tick`), so nothing here has to be exclusive.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, islice, takewhile

from msgspec import Struct
from msgspec.structs import replace

from shigoto.model.errors import ScheduleInvalid
from shigoto.model.schedule import CLOCK_JUMPED_BACK, Change, Firing, Pause, Schedule, TickEntry, TickOutcome
from shigoto.model.text import ERROR_LIMIT, fit, message_of, name_of
from shigoto.model.time import Millis
from shigoto.schedule.definition import Definition, read, written
from shigoto.schedule.recurrence import ZoneMissing

ON_TIME: Millis = 60_000
"""The newest tick is on time if it is late by no more than this; then it fires, whatever the schedule catches up."""
OVERLAP_LOOK: Millis = 1_000
"""How long until somebody looks again whether the job before has ended."""
MOST_COUNTED = 10_000
"""Of ticks that do not fire, how many are counted; a schedule of each second has more in three hours."""
MOST_PAUSES = 100
SHORTEST_LOOK_BACK: Millis = 60_000
MOST_ERRORS = 6
FIRST_PAUSE: Millis = 2_000


class Decision(Struct, frozen=True, kw_only=True):
    """What becomes of a schedule. `entries` are all that is to be written down; those that fire get a job each."""

    entries: tuple[TickEntry, ...] = ()
    cancels: bool = False  # the job before makes room for the new one
    waiting_for_overlap: bool = False
    pauses: tuple[Pause, ...] = ()  # that have ended, and are not yet behind it
    decided_to: Millis
    look_at: Millis | None

    @property
    def fires(self) -> tuple[TickEntry, ...]:
        return tuple(entry for entry in self.entries if entry.outcome.fires)


def decide(schedule: Schedule, definition: Definition, now: Millis, *, busy: bool) -> Decision:
    """Decide everything that is due by now; `busy` says that the job of the last tick has not ended."""
    if clock_jumped_back(schedule, now):
        # Ticks that did fire are in the history, which keeps them from firing again.
        return Decision(decided_to=now, look_at=definition.next_after(now))
    ended, pauses = _ended(schedule, now), _pauses(schedule, now)
    begin, end = pauses[0] if pauses else (now, now)
    decision = _decide_to(begin, schedule, definition, now, busy=busy)
    if decision.waiting_for_overlap:
        return replace(decision, pauses=ended)
    suppressed = _unfired(definition, max(schedule.decided_to, begin), end, now, TickOutcome.SUPPRESSED)
    decision = replace(decision, entries=(*decision.entries, *_joined(suppressed)), pauses=ended[1:])
    if ended:  # what came since is for the next look, which may be at once
        to = max(schedule.decided_to, end)
        decision = replace(decision, decided_to=to, look_at=definition.next_after(to))
    elif suppressed:
        decision = replace(decision, decided_to=now)
    return decision


def clock_jumped_back(schedule: Schedule, now: Millis) -> bool:
    """Whether it is decided further than it can be: the clock has gone back."""
    return schedule.decided_to > now + CLOCK_JUMPED_BACK


def _decide_to(
    end: Millis, schedule: Schedule, definition: Definition, now: Millis, *, busy: bool
) -> Decision:
    """Decide what is due of the ticks up to an instant that is not later than now."""
    following, soon = definition.next_after(now), now + OVERLAP_LOOK
    older, recent = overdue(definition, schedule.decided_to, end)
    if not recent:
        return Decision(decided_to=schedule.decided_to, look_at=following)
    waited = schedule.waiting_for_overlap and definition.overlap == "queue"
    if busy and waited:
        return Decision(waiting_for_overlap=True, decided_to=schedule.decided_to, look_at=soon)

    left_out = TickOutcome.SKIPPED if waited else TickOutcome.MISSED
    wanted = wanted_of(definition, recent, now, waited=waited)
    firing = _without_overlap(definition, wanted, busy=busy)
    outcomes = dict.fromkeys(recent, left_out) | dict.fromkeys(wanted, TickOutcome.SKIPPED)
    on_time = {recent[-1]} if recent[-1] >= now - ON_TIME else set[Millis]()
    outcomes |= {at: TickOutcome.FIRED if at in on_time else TickOutcome.CAUGHT_UP for at in firing}
    entries = [replace(entry, outcome=left_out, decided_at=now) for entry in older]
    entries += [_entry(at, outcome, now) for at, outcome in outcomes.items()]
    waiting = wanted[len(firing) :] if definition.overlap == "queue" else []
    if waiting:
        entries = [entry for entry in entries if entry.at < waiting[0]]
        to = waiting[0] - 1 if entries else schedule.decided_to
        return Decision(entries=_joined(entries), waiting_for_overlap=True, decided_to=to, look_at=soon)
    cancels = busy and bool(firing) and definition.overlap == "cancel"
    return Decision(entries=_joined(entries), cancels=cancels, decided_to=end, look_at=following)


def skipped(schedule: Schedule, definition: Definition, now: Millis) -> Decision:
    """Nothing fires of all that is due: it is written down."""
    outcome = TickOutcome.SKIPPED if schedule.waiting_for_overlap else TickOutcome.MISSED
    after, entries = schedule.decided_to, list[TickEntry]()
    for begin, end in _pauses(schedule, now):
        entries += _unfired(definition, after, begin, now, outcome)
        entries += _unfired(definition, max(after, begin), end, now, TickOutcome.SUPPRESSED)
        after = max(after, end)
    entries += _unfired(definition, after, now, now, outcome)
    return Decision(entries=_joined(entries), decided_to=now, look_at=definition.next_after(now))


def waits_for_pause(schedule: Schedule, definition: Definition, now: Millis) -> bool:
    """Whether ticks from before the pause are still to be decided."""
    first = definition.next_after(schedule.decided_to)
    return first is not None and any(first <= begin for begin, _ in _pauses(schedule, now))


def with_pause(pauses: tuple[Pause, ...], pause: Pause, definition: Definition) -> tuple[Pause, ...]:
    """The pauses of which nobody has taken notice, and one that ends now, if a tick has come in it.

    There is an end to how many a row can keep: the last of so many lasts until the newest ends.
    """
    begin, end = min(pause), pause[1]  # a clock may have gone back in between
    first = definition.next_after(begin)
    if first is None or first > end:
        return pauses
    if len(pauses) == MOST_PAUSES:
        return (*pauses[:-1], (pauses[-1][0], end))
    return (*pauses, (begin, end))


def skipped_unread(schedule: Schedule, now: Millis) -> tuple[TickEntry, ...]:
    """The same where nobody can tell which ticks are due: one entry for all of them, if there is one at all."""
    waits = schedule.waiting_for_overlap or schedule.errors > 0
    first = schedule.decided_to + 1 if waits else schedule.look_at
    if first is None or first > now:
        return ()
    outcome = TickOutcome.SKIPPED if schedule.waiting_for_overlap else TickOutcome.MISSED
    if schedule.paused_at is not None and schedule.paused_at < first:
        outcome = TickOutcome.SUPPRESSED
    return (_entry(first, outcome, now, until=now if now > first else None),)


def _ended(schedule: Schedule, now: Millis) -> tuple[Pause, ...]:
    """The pauses that have ended, but not those by a clock that has gone back since: resumed is resumed."""
    return tuple((begin, end) for begin, end in schedule.pauses if end <= now)


def _pauses(schedule: Schedule, now: Millis) -> list[Pause]:
    """From when to when ticks are suppressed, up to now."""
    pauses = list(_ended(schedule, now))
    if schedule.paused_at is not None:
        # Also if it began by a clock that has gone back since: paused is paused.
        begin = schedule.paused_at if schedule.paused_at <= now else min(schedule.decided_to, now)
        pauses.append((begin, now))
    return pauses


def _unfired(
    definition: Definition, after: Millis, to: Millis, now: Millis, outcome: TickOutcome
) -> list[TickEntry]:
    older, recent = overdue(definition, after, to)
    entries = [replace(entry, outcome=outcome, decided_at=now) for entry in older]
    return entries + [_entry(at, outcome, now) for at in recent]


def counted(schedule: Schedule, entries: Iterable[TickEntry]) -> dict[str, int]:
    counts = Counter(schedule.counts)
    for entry in entries:
        counts[entry.outcome] += entry.count
    return dict(counts)


def joined_to(stretch: TickEntry | None, entry: TickEntry) -> TickEntry:
    """The entry, with the ticks before it that did not fire for the same reason, if there are such."""
    if stretch is None or stretch.outcome is not entry.outcome or stretch.at >= entry.at:
        return entry
    count = stretch.count + entry.count
    if count > MOST_COUNTED:  # whoever fills one of them in has to go through all
        return entry
    return replace(entry, at=stretch.at, until=entry.until or entry.at, count=count)


def cut_off(
    definition: Definition, stretch: TickEntry, to: Millis, fired: Collection[Millis] = ()
) -> TickEntry | None:
    """What is left of it when the clock has gone back to an instant in it, and its later ticks are decided again: None
    if all of them are later. Those that have `fired` lie in it, but do not count.

    All of it, if it tells of other ticks than the definition has now: nobody decides those again.
    """
    end = stretch.until or stretch.at
    ticks = takewhile(lambda at: at <= end, definition.recurrence.after(stretch.at - 1))
    inside = list(islice((at for at in ticks if at not in fired), stretch.count + 1))
    if len(inside) < stretch.count or (inside[stretch.count :] and stretch.count < MOST_COUNTED):
        return stretch
    count = sum(at <= to for at in inside[: stretch.count])
    return replace(stretch, until=to if to > stretch.at else None, count=count) if count else None


def overdue(definition: Definition, after: Millis, now: Millis) -> tuple[list[TickEntry], list[Millis]]:
    """The newest ticks that are due, as many as could be caught up, and one entry for whatever is older than these."""
    enough = definition.most if definition.catch_up == "all" else 1
    back, recent = SHORTEST_LOOK_BACK, list[Millis]()
    while True:
        recent = definition.between(max(after, now - back), now)
        if len(recent) >= enough or now - back <= after:
            break
        back *= 8
    recent = recent[-enough:]
    older: list[Millis] = []
    if recent:
        older = list(
            islice(takewhile(lambda at: at < recent[0], definition.recurrence.after(after)), MOST_COUNTED)
        )
    if not older:
        return [], recent
    until = older[-1] if len(older) < MOST_COUNTED else recent[0] - 1
    return [_entry(older[0], TickOutcome.MISSED, now, until=until, count=len(older))], recent


def left_of(
    definition: Definition, stretch: TickEntry, fired: Collection[Millis], before: Collection[Millis] = ()
) -> list[TickEntry] | None:
    """What stays written down of ticks that stand in one entry, when some of them fire after all. Those that have fired
    `before` lie in it, but do not count.

    None, if it tells of other ticks than the definition has now.
    """
    end = stretch.until or stretch.at
    ticks = takewhile(lambda at: at <= end, definition.recurrence.after(stretch.at - 1))
    inside = list(islice(ticks, stretch.count + sum(stretch.spans(at) for at in before)))
    more = list(islice(ticks, 1))
    if sum(at not in before for at in inside) < stretch.count or (more and stretch.count < MOST_COUNTED):
        return None
    parts: list[list[Millis]] = [[]]
    for at in chain(inside, more, ticks):
        if at in fired or at in before:
            parts.append([])
        else:
            parts[-1].append(at)
        if at >= inside[-1] and len(parts[-1]) >= MOST_COUNTED:
            break
    left = [
        replace(stretch, at=part[0], until=part[-1] if part[1:] else None, count=len(part))
        for part in parts
        if part
    ]
    if parts[-1] and parts[-1][-1] < end:  # that is where counting has ended, and not the stretch
        left[-1] = replace(left[-1], until=end)
    if left and left[0].at > stretch.at and stretch.at not in fired:
        # It begins behind a tick that had fired before.
        left[0] = replace(left[0], at=stretch.at, until=left[0].until or left[0].at)
    return left


def wanted_of(definition: Definition, recent: list[Millis], now: Millis, *, waited: bool) -> list[Millis]:
    """Those of the newest ticks that are to fire, if nothing else is in the way. What has waited may be late."""
    newest = recent[-1]
    if waited:
        return recent if definition.catch_up == "all" else [newest]
    late_by = {"none": 0, "latest": definition.within, "all": definition.within}[definition.catch_up]
    oldest = recent[0] if late_by is None else now - late_by
    some = recent if definition.catch_up == "all" else [newest]
    return [at for at in some if at >= oldest or (at == newest and at >= now - ON_TIME)]


def _without_overlap(definition: Definition, wanted: Sequence[Millis], *, busy: bool) -> Sequence[Millis]:
    """Those that fire, so that the jobs of two ticks do not run at once where they must not."""
    if definition.overlap == "allow":
        return wanted
    if busy and definition.overlap in ("skip", "queue"):
        return ()
    return wanted[:1] if definition.overlap == "queue" else wanted[-1:]


def _entry(
    at: Millis, outcome: TickOutcome, now: Millis, *, until: Millis | None = None, count: int = 1
) -> TickEntry:
    return TickEntry(at=at, outcome=outcome, decided_at=now, until=until, count=count)


def _joined(entries: Iterable[TickEntry]) -> tuple[TickEntry, ...]:
    """The entries, with neighbours that did not fire for the same reason as one."""
    joined: list[TickEntry] = []
    for entry in entries:
        last = joined[-1] if joined else None
        if last is not None and last.outcome is entry.outcome and not entry.outcome.fires:
            joined[-1] = replace(last, until=entry.until or entry.at, count=last.count + entry.count)
        else:
            joined.append(entry)
    return tuple(joined)


def redefined(schedule: Schedule, definition: Definition, now: Millis) -> Change:
    """The schedule with another definition. Whatever it failed of may be mended by that, so it is tried again.

    What is due stays due, if the new definition has the same ticks up to now. If not, these are passed over; also where
    nobody knows the time zone that they were in, which is what another definition may be there to mend.
    """
    before = read(schedule.definition)
    changed = replace(schedule, definition=written(definition), failed=False, errors=0, error=None)
    ends = {each.until for each in (before, definition) if each.until is not None and each.until < now}
    if before.recurrence == definition.recurrence and (not ends or before.until == definition.until):
        look_at = definition.next_after(min(schedule.decided_to, now))
        return Change(schedule=replace(changed, look_at=look_at), seen=schedule.revision)
    try:
        entries = skipped(schedule, before, now).entries
    except ZoneMissing:
        entries = skipped_unread(schedule, now)
    return Change(
        schedule=replace(
            changed,
            waiting_for_overlap=False,
            pauses=(),
            # If the clock has gone back, whoever looks next goes back, too.
            decided_to=max(schedule.decided_to, now),
            look_at=definition.next_after(now),
            counts=counted(schedule, entries),
            stretch=None,
        ),
        seen=schedule.revision,
        firings=tuple(Firing(entry=entry) for entry in entries),
    )


def after_failure(schedule: Schedule, error: BaseException, now: Millis) -> Change:
    """What is written down. The ticks stay due: nothing of them is decided.

    After some tries the schedule has failed, and waits for an operator, unless it was said that it shall go
    (`when_failed="remove"`).
    """
    errors = schedule.errors + 1
    failed = errors >= MOST_ERRORS
    look_at = None if failed else now + FIRST_PAUSE * 2 ** (errors - 1)
    changed = replace(schedule, errors=errors, error=_text(error), failed=failed, look_at=look_at)
    return Change(schedule=changed, seen=schedule.revision, removes=failed and _shall_go(schedule))


def _shall_go(schedule: Schedule) -> bool:
    try:
        return read(schedule.definition).when_failed == "remove"
    except ScheduleInvalid:
        return False


def _text(error: BaseException) -> str:
    """The error in words that every store can hold. To find them must not become the next error."""
    try:
        message = message_of(error)
    except BaseException as broken:
        message = f"<its message cannot be shown: __str__ raised {name_of(broken)}>"
    return fit(f"{name_of(error)}: {message}" if message else name_of(error), ERROR_LIMIT)
