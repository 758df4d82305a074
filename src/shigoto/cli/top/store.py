"""The questions that the live view asks of a store, and the actions that its keys ask for.

A query is a few bounded questions; its answers, the snapshot, are as of one moment. An action is one thing at a time.

    press(choices, key, snapshot)  →  the choices after it, and an action if one was asked for

Only the panel in focus has a selection. It stays with its job or queue wherever that moves. Where that is gone nothing
is chosen until a key chooses: what somebody is about to do to one job must never be done to another.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, assert_never
from uuid import UUID

from msgspec import Struct, structs

from shigoto.bulk import Redriven, carry_out, choose_plan, retry_plan
from shigoto.cli.arguments import audited
from shigoto.cli.confirm import counted
from shigoto.cli.output import one_line
from shigoto.cli.show import Story, story_op
from shigoto.cli.top.terminal import Key
from shigoto.engine.op import Op, Steps
from shigoto.filters import Filters, parse_filter, wanted
from shigoto.model.errors import JobNotFound, OptionInvalid, ShigotoError
from shigoto.model.job import Counts, FailureKind, Job, JobFilter, State
from shigoto.model.worker import WorkerRecord
from shigoto.queues import pause_op

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine

# A store finds the newest jobs by number. Which of them run for longest, or failed last, is found among so many.
AMONG = 200
PAGE = 50
HEAVY = 4_000_000  # letters of payloads, after which no more jobs are read
PAGE_LINES = 10  # rows that a page key moves by
LONGEST_FILTER = 500  # letters


class TopQuery(Struct, frozen=True, kw_only=True):
    """What to look for: jobs that match, at most how many of a kind, and the one whose story is to be told.

    The job that is `chosen`, by its state and number, is found as well for as long as it matches and is in that state.
    """

    filtered: str = ""
    most: int = 20
    chosen: tuple[State, int] | None = None
    opened: Job | None = None


class TopSnapshot(Struct, frozen=True, kw_only=True):
    """What there was: `running` jobs, the longest first, and `failed` ones, the last first; `chosen` as in the query.

    Where there were too many to see all jobs of a state, `among` says of how many these are.
    """

    queues: dict[str, Counts] = {}
    paused: frozenset[str] = frozenset()
    workers: list[WorkerRecord] = []
    running: list[Job] = []
    failed: list[Job] = []
    among: dict[State, int] = {}
    chosen: tuple[State, int] | None = None
    story: Story | None = None


def snapshot_op(engine: "Engine", query: TopQuery) -> Op[TopSnapshot]:
    page = panel_filter(query.filtered)  # now and not once: `since:5m` is another moment at every query

    def steps() -> Steps[TopSnapshot]:
        counts = yield from engine.stats().start()
        settings = yield from engine.settings().start()
        names = sorted({*counts, *(queue.name for queue in settings)})
        jobs: dict[State, list[Job]] = {}
        among: dict[State, int] = {}
        for state in (State.PROCESSING, State.FAILED):
            jobs[state], seen = yield from _jobs(engine, structs.replace(page, state=state), query)
            if seen is not None:
                among[state] = seen
        return TopSnapshot(
            queues={name: counts.get(name, Counts()) for name in names},
            paused=frozenset(queue.name for queue in settings if queue.paused),
            workers=(yield from engine.workers().start()),
            running=jobs[State.PROCESSING],
            failed=jobs[State.FAILED],
            among=among,
            chosen=query.chosen,
            story=(yield from _story(engine, query)),
        )

    return Op(start=steps, mode="read")


def panel_filter(text: str) -> JobFilter:
    """What a text in the filter language asks for. Raises OptionInvalid."""
    filters = parse_filter(text)
    if "state" in filters:
        raise OptionInvalid("A state cannot be chosen here: the panels are for running and for failed jobs.")
    return wanted(filters)


def _jobs(engine: "Engine", page: JobFilter, query: TopQuery) -> Steps[tuple[list[Job], int | None]]:
    """The first jobs of a state, and the chosen one wherever it comes; and of how many, if not of all."""
    found, whole = yield from _newest(engine, page, max(AMONG, query.most))
    found = _in_order(found, page)
    shown, rest = found[: query.most], found[query.most :]
    if query.chosen is not None and query.chosen[0] is page.state:
        number = query.chosen[1]
        if all(job.number != number for job in found):
            rest = yield from engine.find(structs.replace(page, before=number + 1, limit=1)).start()
        shown = _in_order([*shown, *(job for job in rest if job.number == number)], page)
    return shown, None if whole else len(found)


def _in_order(jobs: Sequence[Job], page: JobFilter) -> list[Job]:
    """By the moment that counts, which is the end of jobs that failed and the start of others."""
    return sorted(
        jobs,
        key=lambda job: (job.finished_at or job.started_at or job.created_at, job.number),
        reverse=page.state is State.FAILED,
    )


def _newest(engine: "Engine", page: JobFilter, most: int) -> Steps[tuple[list[Job], bool]]:
    """So many jobs, or fewer where they are large, and whether there are no more."""
    found: list[Job] = []
    page = structs.replace(page, limit=PAGE)
    while True:
        jobs = yield from engine.find(page).start()
        found += jobs
        if len(jobs) < PAGE:
            return found, True
        if len(found) >= most or sum(len(job.payload) for job in found) > HEAVY:
            return found, False
        page = structs.replace(page, before=jobs[-1].number)


def _story(engine: "Engine", query: TopQuery) -> Steps[Story | None]:
    if query.opened is None:
        return None
    try:
        return (yield from story_op(engine, query.opened).start())
    except JobNotFound:
        return None


class PauseQueue(Struct, frozen=True):
    queue: str
    paused: bool


class CancelJob(Struct, frozen=True):
    """Ask a running job to stop."""

    id: UUID
    number: int


class RetryJob(Struct, frozen=True):
    id: UUID
    number: int


class CountFailed(Struct, frozen=True):
    """Find how many failed jobs of a task match, before anybody is asked about them."""

    task: str
    filtered: str = ""


class RetryAll(Struct, frozen=True):
    """Retry all failed jobs of a task that match; so many they were when they were counted."""

    task: str
    filtered: str = ""
    count: int = 0
    quarantined: int = 0


Action = PauseQueue | CancelJob | RetryJob | CountFailed | RetryAll


def named(action: Action) -> str:
    """What is being done, as a part of a sentence."""
    match action:
        case PauseQueue(queue, paused):
            return f"{'pausing' if paused else 'resuming'} {queue}"
        case CancelJob(_, number):
            return f"cancelling #{number}"
        case RetryJob(_, number):
            return f"retrying #{number}"
        case CountFailed(task):
            return f"counting the failed jobs of {task}"
        case RetryAll(task):
            return f"retrying the failed jobs of {task}"
        case _:
            assert_never(action)


def act(engine: "Engine", action: Action) -> str | RetryAll:
    """Do it and tell what came of it, or what is to be asked now. Raises what the engine raises."""
    match action:
        case PauseQueue(queue, paused):
            engine.run(pause_op(audited(engine), queue, paused=paused))
            return f"{queue} is paused: nothing of it is started." if paused else f"{queue} is resumed."
        case CancelJob(id, number):
            [state] = engine.run(audited(engine).cancel([id]))
            return f"#{number} {_after_cancel(state)}"
        case RetryJob(id, number):
            engine.run(audited(engine).retry([id]))
            return f"#{number} is ready again."
        case CountFailed(task, filtered):
            return _after_count(engine.run(_count_op(engine, RetryAll(task, filtered))))
        case RetryAll(task, filtered):
            filters = _failed(task, filtered)
            chosen = carry_out(engine, choose_plan(engine, filters, decoder=lambda _: None))
            return _after_retry(task, carry_out(engine, retry_plan(audited(engine, filters), chosen)))
        case _:
            assert_never(action)


def _failed(task: str, filtered: str) -> Filters:
    return {**parse_filter(filtered), "task": task, "state": State.FAILED}


def _count_op(engine: "Engine", meant: RetryAll) -> Op[RetryAll]:
    page = wanted(_failed(meant.task, meant.filtered))

    def steps() -> Steps[RetryAll]:
        count = yield from engine.count(page).start()
        if page.failure_kind is not None:
            return structs.replace(meant, count=count)
        alone = structs.replace(page, failure_kind=FailureKind.CRASH_LOOP)
        quarantined = yield from engine.count(alone).start()
        return structs.replace(meant, count=count - quarantined, quarantined=quarantined)

    return Op(start=steps, mode="read")


def _after_count(meant: RetryAll) -> str | RetryAll:
    if meant.count:
        return meant
    left = f"; {meant.quarantined} in quarantine" if meant.quarantined else ""
    return f"There is no failed job of {meant.task} to retry{left}."


def _after_cancel(state: State | None) -> str:
    match state:
        case None:
            return "is gone: its retention has passed."
        case State.PROCESSING:
            return "was asked to stop."
        case State.CANCELLED:
            return "is cancelled."
        case _:
            return f"is {state} and cannot be cancelled."


def _after_retry(task: str, redriven: Redriven) -> str:
    count = len(redriven.retried)
    words = [f"{counted(count, 'failed')} of {task} {'is' if count == 1 else 'are'} ready again"]
    for jobs, why in (
        (redriven.quarantined, "left alone in quarantine"),
        (redriven.key_taken, "passed over, since another holds the unique key"),
        (redriven.gone, "gone meanwhile"),
    ):
        if jobs:
            words.append(f"{len(jobs)} {why}")
    return "; ".join(words) + "."


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
            return place - PAGE_LINES
        case "page_down":
            return place + PAGE_LINES
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
    if (place := _moved(key, choices.scrolled, choices.scrolled + PAGE_LINES)) is not None:
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
    return structs.replace(choices, busy=None, told=ViewMessage(text, bad))


def _refused(choices: Choices, text: str) -> Choices:
    return structs.replace(choices, told=ViewMessage(text, bad=True))
