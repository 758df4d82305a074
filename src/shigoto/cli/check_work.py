"""What can be wrong with jobs and workers: one pure function per question, from facts to a finding."""

from collections.abc import Sequence
from datetime import timedelta

from shigoto.cli.findings import Facts, Finding, Level
from shigoto.cli.output import span
from shigoto.model.checkup import LaneFacts
from shigoto.model.worker import WorkerRecord

PATIENCE = timedelta(minutes=5)  # with ready jobs: a deployment may take as long
NO_WORKER_FOR = timedelta(minutes=1)
NAMED = 5  # lanes, queues or workers in one sentence


def workers(facts: Facts) -> Finding | None:
    """Whether somebody is there to work, and whether all who said so still are."""
    if facts.refused:
        return None
    live = facts.live
    waiting = _due(facts) if facts.store is None else sum(lane.ready for lane in facts.lanes)
    if not live and waiting:
        long = facts.store is None or facts.since(facts.lanes) > NO_WORKER_FOR
        return Finding(
            check="workers",
            level=Level.PROBLEM if long else Level.WARNING,
            text=f"No worker is alive, and {_jobs(waiting)} could run.",
            remedy=f"Start one: {facts.said.command('worker')}.",
        )
    overdue = [worker for worker in facts.workers if worker.lease_until < facts.now]
    if overdue:
        names = _listed([f"{worker.name} (by {span(facts.now - worker.lease_until)})" for worker in overdue])
        held = sum(worker.processing for worker in overdue)
        return Finding(
            check="workers",
            level=Level.WARNING,
            text=f"No sign of life from {names}; {_jobs(held)} in hand.",
            remedy=(
                "If they are gone, any live worker takes their jobs over within a minute."
                if live
                else "If they are gone, start a worker: it takes their jobs over."
            ),
        )
    return Finding(
        check="workers", level=Level.OK, text=f"{len(live)} alive." if live else "None, and no work."
    )


def orphans(facts: Facts) -> Finding | None:
    """Whether jobs are counted as running although their worker is gone."""
    if facts.store is None or not facts.store.orphans:
        return None
    remedy = "A live worker frees them within seconds." if facts.live else "Start a worker: it frees them."
    return Finding(
        check="leases",
        level=Level.NOTE if facts.live else Level.WARNING,
        text=f"{_jobs(facts.store.orphans)} of workers that are gone count as running.",
        remedy=remedy,
    )


def unserved(facts: Facts) -> Finding | None:
    """Whether there are jobs that no live worker would take: of an unknown task, or of a queue nobody serves."""
    if not facts.live:
        return None
    lanes = [lane for lane in facts.lanes if not any(_serves(worker, lane) for worker in facts.live)]
    if not lanes:
        return None
    known = {task for worker in facts.live for task in worker.tasks}
    names = [
        f"{lane.task} in {lane.queue} ({_jobs(lane.ready)}, for {span(facts.now - lane.oldest)},"
        f" {'no worker takes that queue' if lane.task in known else 'nobody knows the task'})"
        for lane in lanes
    ]
    return Finding(
        check="tasks",
        level=Level.PROBLEM if facts.since(lanes) > PATIENCE else Level.WARNING,
        text=f"No live worker takes {_listed(names)}.",
        remedy="Start a worker whose app has the task and that serves the queue; or cancel the jobs.",
    )


def paused(facts: Facts) -> Finding | None:
    """Whether jobs wait in queues that somebody has paused."""
    waiting = {
        name: counts.pending
        for name, counts in facts.queues.items()
        if name in facts.paused and counts.pending
    }
    if not waiting:
        return None
    names = [f"{name} ({_jobs(pending)})" for name, pending in waiting.items()]
    return Finding(
        check="queues",
        level=Level.NOTE,
        text=f"Jobs wait in paused queues: {_listed(names)}.",
        remedy=f"{facts.said.command('resume', *list(waiting)[:NAMED])} lets them run.",
    )


def alone(facts: Facts) -> Finding | None:
    """Whether jobs wait for a process of their own and no live worker has one to give."""
    lanes = [lane for lane in facts.lanes if lane.alone and _is_refused(facts.live, lane)]
    if not lanes:
        return None
    count = sum(lane.ready for lane in lanes)
    return Finding(
        check="isolation",
        level=Level.WARNING,
        text=(
            f"{_jobs(count)} must run in a process of {_own(count)} own, because of a crash or a time limit, and no"
            " live worker can do that."
        ),
        remedy=(
            f"Start a worker by `{facts.said.command('worker')}`: those that are part of another program have no such"
            " processes."
        ),
    )


def quarantined(facts: Facts) -> Finding | None:
    """Whether jobs were put away because they kill their process."""
    if not facts.quarantined:
        return None
    these = ("--kind", "crash_loop")
    return Finding(
        check="quarantine",
        level=Level.WARNING,
        text=(
            f"{_jobs(facts.quarantined)} killed {_own(facts.quarantined)} process again and again, and"
            f" {'was' if facts.quarantined == 1 else 'were'} put away."
        ),
        remedy=(
            f"{facts.said.command('list', *these)} names them, and {facts.said.command('show')} has the signal and the"
            f" stack of each. Mend the code, then {facts.said.command('redrive', *these)}."
        ),
    )


def backlog(facts: Facts) -> Finding | None:
    """Whether workers come to the jobs that they take in good time."""
    if facts.store is None or facts.refused:
        return None
    served = [lane for lane in facts.lanes if any(_serves(worker, lane) for worker in facts.live)]
    if facts.since(served) <= PATIENCE:
        return Finding(
            check="backlog", level=Level.OK, text="No job that a worker would take has waited for long."
        )
    oldest = min(served, key=lambda lane: lane.oldest)
    return Finding(
        check="backlog",
        level=Level.WARNING,
        text=f"A job of {oldest.task} in {oldest.queue} has been ready for {span(facts.now - oldest.oldest)}.",
        remedy="The workers do not keep up: start more, or give them more slots with --concurrency or --processes.",
    )


def _serves(worker: WorkerRecord, lane: LaneFacts) -> bool:
    return lane.task in worker.tasks and (worker.queues is None or lane.queue in worker.queues)


def _is_refused(live: Sequence[WorkerRecord], lane: LaneFacts) -> bool:
    """Whether workers would take this lane, and none of them can run a job by itself."""
    serving = [worker for worker in live if _serves(worker, lane)]
    return bool(serving) and not any(worker.isolates for worker in serving)


def _due(facts: Facts) -> int:
    """How many pending jobs are due, where only counts are known."""
    return sum(
        counts.pending - counts.scheduled for name, counts in facts.queues.items() if name not in facts.paused
    )


def _jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"


def _own(count: int) -> str:
    return "its" if count == 1 else "their"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
