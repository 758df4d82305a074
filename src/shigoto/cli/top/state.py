"""What the person at the keys has chosen, and what a key makes of it.

    press(choices, key, snapshot)  →  the choices after it, and an action if one was asked for

Only the panel in focus has a selection. It stays with its job or queue wherever that moves. Where that is gone nothing
is chosen until a key chooses: what somebody is about to do to one job must never be done to another.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Literal

from msgspec import Struct, structs

from shigoto.cli.confirm import counted
from shigoto.cli.output import one_line
from shigoto.cli.top.store import (
    Action,
    CancelJob,
    CountFailed,
    PauseQueue,
    RetryAll,
    RetryJob,
    TopSnapshot,
    named,
)
from shigoto.cli.top.terminal import Key
from shigoto.model.errors import ShigotoError
from shigoto.model.job import Job, State

PAGE = 10  # rows that a page key moves by
LONGEST_FILTER = 500  # letters

Step = tuple["Choices", Action | None]


class Panel(StrEnum):
    """The three parts of the view that have rows to choose from."""

    QUEUES = "queues"
    RUNNING = "running"
    FAILURES = "failures"


PANELS = tuple(Panel)


class Cursor(Struct, frozen=True):
    """The chosen row: what it is, and where it was seen last.

    At the start it is the first that comes; once it is `lost`, none is until a key chooses.
    """

    chosen: str | None = None
    place: int = 0
    lost: bool = False


class Question(Struct, frozen=True):
    """What is to be answered by y before it is done."""

    text: str
    action: Action


class ViewMessage(Struct, frozen=True):
    """The last thing there was to say."""

    text: str = ""
    bad: bool = False


class Choices(Struct, frozen=True, kw_only=True):
    """All that was chosen and said. `trouble` is what is wrong with the store, until it is well again."""

    panel: Panel = Panel.QUEUES
    cursor: Cursor = Cursor()
    page: Literal["panels", "job", "help"] = "panels"
    opened: Job | None = None
    scrolled: int = 0
    typed: str | None = None
    filtered: str = ""
    question: Question | None = None
    told: ViewMessage = ViewMessage()
    trouble: str = ""
    busy: Action | None = None
    over: bool = False


def rows_of(snapshot: TopSnapshot, panel: Panel) -> list[str]:
    """What the rows of a panel are, in their order: names of queues, numbers of jobs."""
    match panel:
        case Panel.QUEUES:
            return list(snapshot.queues)
        case Panel.RUNNING:
            return [str(job.number) for job in snapshot.running]
        case Panel.FAILURES:
            return [str(job.number) for job in snapshot.failed]


def seen(choices: Choices, snapshot: TopSnapshot) -> Choices:
    """The choices after a new snapshot."""
    cursor = _followed(choices, snapshot)
    if snapshot.story is None or choices.opened is None or snapshot.story.job.id != choices.opened.id:
        return structs.replace(choices, cursor=cursor, trouble="")
    return structs.replace(choices, cursor=cursor, opened=snapshot.story.job, trouble="")


def _followed(choices: Choices, snapshot: TopSnapshot) -> Cursor:
    """The selection follows its row. A job that this query did not ask for may be there though it is not seen."""
    cursor, rows = choices.cursor, rows_of(snapshot, choices.panel)
    if cursor.chosen in rows:
        return Cursor(cursor.chosen, rows.index(cursor.chosen))
    if cursor.chosen is None:
        return cursor if cursor.lost or not rows else Cursor(rows[0])
    unasked = choices.panel is not Panel.QUEUES and snapshot.chosen != chosen_job(choices)
    return cursor if unasked else Cursor(None, cursor.place, lost=True)


def chosen_job(choices: Choices) -> tuple[State, int] | None:
    """The state and the number of the job that is chosen in a panel of jobs."""
    state = {Panel.RUNNING: State.PROCESSING, Panel.FAILURES: State.FAILED}.get(choices.panel)
    chosen = choices.cursor.chosen
    return None if state is None or chosen is None else (state, int(chosen))


def selected_queue(choices: Choices, snapshot: TopSnapshot) -> str | None:
    """The queue that is chosen."""
    chosen = choices.cursor.chosen
    return chosen if choices.panel is Panel.QUEUES and chosen in snapshot.queues else None


def selected_job(choices: Choices, snapshot: TopSnapshot) -> Job | None:
    """The job that is chosen, or whose story is open."""
    if choices.page == "job":
        return choices.opened
    jobs = {Panel.RUNNING: snapshot.running, Panel.FAILURES: snapshot.failed}.get(choices.panel, [])
    return next((job for job in jobs if str(job.number) == choices.cursor.chosen), None)


def press(choices: Choices, key: Key, snapshot: TopSnapshot, check: Callable[[str], object]) -> Step:
    """The view after a key, and what is to be done. `check` raises what is wrong with a filter."""
    if key.name == "interrupt":
        return structs.replace(choices, over=True), None
    if choices.question is not None:
        return _answer(choices, choices.question, key)
    if choices.typed is not None:
        return _type(choices, choices.typed, key, check), None
    choices = structs.replace(choices, told=ViewMessage())
    if key.name == "q":
        return structs.replace(choices, over=True), None
    if key.name == "?":
        return structs.replace(choices, page="help" if choices.page != "help" else "panels", scrolled=0), None
    if choices.page == "panels":
        return _choose(choices, key, snapshot)
    return _read(choices, key, snapshot)


def _answer(choices: Choices, question: Question, key: Key) -> Step:
    choices = structs.replace(choices, question=None)
    if key.name not in ("y", "Y"):
        return structs.replace(choices, told=ViewMessage("Nothing was changed.")), None
    return _do(choices, question.action)


def _type(choices: Choices, typed: str, key: Key, check: Callable[[str], object]) -> Choices:
    choices = structs.replace(choices, told=ViewMessage())
    match key.name:
        case "escape":
            return structs.replace(choices, typed=None)
        case "enter":
            return _filter(choices, typed.strip(), check)
        case "backspace":
            return structs.replace(choices, typed=typed[:-1] if typed else None)
        case "clear":
            return structs.replace(choices, typed="")
        case "paste":
            return structs.replace(choices, typed=(typed + one_line(key.text))[:LONGEST_FILTER])
        case letter if len(letter) == 1:
            return structs.replace(choices, typed=(typed + letter)[:LONGEST_FILTER])
        case _:
            return choices


def _filter(choices: Choices, text: str, check: Callable[[str], object]) -> Choices:
    try:
        check(text)
    except ShigotoError as error:
        return structs.replace(choices, told=ViewMessage(str(error), bad=True))
    return structs.replace(choices, typed=None, filtered=text)


def _choose(choices: Choices, key: Key, snapshot: TopSnapshot) -> Step:
    """Keys while the panels are shown."""
    rows, cursor = rows_of(snapshot, choices.panel), choices.cursor
    if (place := _moved(key, cursor.place, len(rows) - 1)) is not None:
        if cursor.chosen not in rows and key.name in ("down", "j", "page_down"):
            place -= 1  # the next row stands in the place of the one that is gone
        return structs.replace(choices, cursor=_at(place, rows)), None
    match key.name:
        case "tab" | "right" | "l":
            return _turn(choices, snapshot, 1), None
        case "back_tab" | "left" | "h":
            return _turn(choices, snapshot, -1), None
        case "/":
            return structs.replace(choices, typed=choices.filtered), None
        case "escape" if choices.filtered:
            return structs.replace(choices, filtered=""), None
        case "enter":
            return _open(choices, selected_job(choices, snapshot)), None
        case "p":
            return _pause(choices, snapshot)
        case _:
            return _act_on_job(choices, key, selected_job(choices, snapshot))


def _moved(key: Key, place: int, last: int) -> int | None:
    """Where a key moves a selection or a text to; None if it does not."""
    match key.name:
        case "up" | "k":
            return place - 1
        case "down" | "j":
            return place + 1
        case "page_up":
            return place - PAGE
        case "page_down":
            return place + PAGE
        case "home" | "g":
            return 0
        case "end" | "G":
            return last
        case _:
            return None


def _turn(choices: Choices, snapshot: TopSnapshot, by: int) -> Choices:
    panel = PANELS[(PANELS.index(choices.panel) + by) % len(PANELS)]
    return structs.replace(choices, panel=panel, cursor=_at(0, rows_of(snapshot, panel)))


def _at(place: int, rows: Sequence[str]) -> Cursor:
    place = max(0, min(place, len(rows) - 1))
    return Cursor(rows[place], place) if rows else Cursor(lost=True)


def _open(choices: Choices, job: Job | None) -> Choices:
    if job is None:
        return _refused(choices, "Choose a running or failed job first: Tab, then the arrows.")
    return structs.replace(choices, page="job", opened=job, scrolled=0)


def _read(choices: Choices, key: Key, snapshot: TopSnapshot) -> Step:
    """Keys while a job's story or the help is shown. Where its end is, only the drawing knows."""
    if (place := _moved(key, choices.scrolled, choices.scrolled + PAGE)) is not None:
        return structs.replace(choices, scrolled=max(0, place)), None
    if key.name in ("escape", "enter", "left", "h", "backspace"):
        return structs.replace(choices, page="panels", opened=None, scrolled=0), None
    return _act_on_job(choices, key, selected_job(choices, snapshot))


def _pause(choices: Choices, snapshot: TopSnapshot) -> Step:
    queue = selected_queue(choices, snapshot)
    if queue is None:
        return _refused(choices, "Choose a queue first: Tab, then the arrows."), None
    return _do(choices, PauseQueue(queue, queue not in snapshot.paused))


def _act_on_job(choices: Choices, key: Key, job: Job | None) -> Step:
    """Keys that do something to the chosen job, if it is in the state for that."""
    needed = {"c": State.PROCESSING, "r": State.FAILED, "R": State.FAILED}.get(key.name)
    if needed is None:
        return choices, None
    if job is None or job.state is not needed:
        kind = "running" if needed is State.PROCESSING else "failed"
        return _refused(choices, f"Choose a {kind} job first: Tab, then the arrows."), None
    match key.name:
        case "c":
            question = f"Ask #{job.number} ({one_line(job.task)}) to stop?"
            return _ask(choices, question, CancelJob(job.id, job.number))
        case "r":
            return _do(choices, RetryJob(job.id, job.number))
        case _:
            return _do(choices, CountFailed(job.task, choices.filtered))


def _ask(choices: Choices, text: str, action: Action) -> Step:
    if choices.busy is not None:
        return _do(choices, action)
    return structs.replace(choices, question=Question(text, action)), None


def _do(choices: Choices, action: Action) -> Step:
    if choices.busy is not None:
        return _refused(choices, f"One thing at a time: still {named(choices.busy)}."), None
    return structs.replace(choices, busy=action, told=ViewMessage()), action


def asked(choices: Choices, action: RetryAll) -> Choices:
    """The choices after it was found what is to be asked; a letter that is typed now would be no answer."""
    choices = structs.replace(choices, busy=None)
    if choices.typed is not None:
        return _refused(choices, f"Nothing of {action.task} was retried: press R again.")
    which = (
        f" that {'matches' if action.count == 1 else 'match'} {action.filtered}" if action.filtered else ""
    )
    left = f" ({action.quarantined} more stay in quarantine)" if action.quarantined else ""
    text = f"Retry {counted(action.count, 'failed')} of {action.task}{which}{left}?"
    return structs.replace(choices, question=Question(text, action))


def done(choices: Choices, text: str, *, bad: bool = False) -> Choices:
    """The view after an action has ended, well or not."""
    return structs.replace(choices, busy=None, told=ViewMessage(text, bad))


def _refused(choices: Choices, text: str) -> Choices:
    return structs.replace(choices, told=ViewMessage(text, bad=True))
