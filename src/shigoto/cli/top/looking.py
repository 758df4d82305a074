"""What one look at the store brings: a few bounded questions, answered as of one moment."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from shigoto.cli.show import Story, telling
from shigoto.engine.op import Op, Steps
from shigoto.filters import parse_filter, wanted
from shigoto.model.errors import JobNotFound, OptionInvalid
from shigoto.model.job import Counts, Job, JobFilter, State
from shigoto.model.worker import WorkerRecord

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine

# A store finds the newest jobs by number. Which of them run for longest, or failed last, is found among so many.
AMONG = 200
PAGE = 50
HEAVY = 4_000_000  # letters of payloads, after which no more jobs are looked at


class Look(Struct, frozen=True, kw_only=True):
    """What to look for: jobs that match, at most how many of a kind, and the one whose story is to be told.

    The job that is `chosen`, by its state and number, is found as well for as long as it matches and is in that state.
    """

    filtered: str = ""
    most: int = 20
    chosen: tuple[State, int] | None = None
    opened: Job | None = None


class Sight(Struct, frozen=True, kw_only=True):
    """What there was: `running` jobs, the longest first, and `failed` ones, the last first; `chosen` as in the look.

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


def looking(engine: "Engine", look: Look) -> Op[Sight]:
    """One look, in one go."""

    page = panel_filter(look.filtered)  # now and not once: `since:5m` is another moment at every look

    def steps() -> Steps[Sight]:
        counts = yield from engine.stats().start()
        settings = yield from engine.settings().start()
        names = sorted({*counts, *(queue.name for queue in settings)})
        jobs: dict[State, list[Job]] = {}
        among: dict[State, int] = {}
        for state in (State.PROCESSING, State.FAILED):
            jobs[state], seen = yield from _jobs(engine, structs.replace(page, state=state), look)
            if seen is not None:
                among[state] = seen
        return Sight(
            queues={name: counts.get(name, Counts()) for name in names},
            paused=frozenset(queue.name for queue in settings if queue.paused),
            workers=(yield from engine.workers().start()),
            running=jobs[State.PROCESSING],
            failed=jobs[State.FAILED],
            among=among,
            chosen=look.chosen,
            story=(yield from _story(engine, look)),
        )

    return Op(start=steps, mode="read")


def panel_filter(text: str) -> JobFilter:
    """What a text in the filter language asks for. Raises OptionInvalid."""
    filters = parse_filter(text)
    if "state" in filters:
        raise OptionInvalid("A state cannot be chosen here: the panels are for running and for failed jobs.")
    return wanted(filters)


def _jobs(engine: "Engine", page: JobFilter, look: Look) -> Steps[tuple[list[Job], int | None]]:
    """The first jobs of a state, and the chosen one wherever it comes; and of how many, if not of all."""
    found, whole = yield from _newest(engine, page, max(AMONG, look.most))
    found = _in_order(found, page)
    shown, rest = found[: look.most], found[look.most :]
    if look.chosen is not None and look.chosen[0] is page.state:
        number = look.chosen[1]
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


def _story(engine: "Engine", look: Look) -> Steps[Story | None]:
    if look.opened is None:
        return None
    try:
        return (yield from telling(engine, look.opened).start())
    except JobNotFound:
        return None
