"""The command `show`: what one job is, what it does now, and everything that has happened to it.

`--decrypt` shows an encrypted job in clear, for those who have the keys and ask for it.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, assert_never

import click
from msgspec import Struct, structs

from shigoto.cli import output
from shigoto.cli.arguments import pick, split_jobs
from shigoto.cli.target import NO_HINT, CommandHint, takes_target, takes_words, target_of
from shigoto.encryption import Field, opened
from shigoto.engine.op import Op, Steps
from shigoto.model.errors import JobNotFound
from shigoto.model.job import Attempt, FailureKind, Job, LoggedLine, QueueSettings, State
from shigoto.model.secrets import presented, presented_attempts, presented_lines
from shigoto.model.worker import WorkerRecord

if TYPE_CHECKING:
    from shigoto.encryption import Encryption
    from shigoto.engine.protocol import Engine

LOG_LINES = 20
LABEL = 10  # cells
LONGEST = 2_000  # letters of an argument or a result that are worth showing
GIVEN_BACK = ("released", "snoozed")  # outcomes of runs that do not count as attempts

KINDS = {
    FailureKind.ERROR: "It raised an error, and has no retries left.",
    FailureKind.TIMEOUT: "It ran into its time limit, and has no retries left.",
    FailureKind.REJECTED: "It was given up without a retry, by the handler itself or by its retry policy.",
    FailureKind.PAYLOAD_INVALID: "Its arguments do not fit the task.",
    FailureKind.RESULT_INVALID: "It ran to its end, but what it returned cannot be stored.",
    FailureKind.UNKNOWN_TASK: "No worker knew its task.",
    FailureKind.EXPIRED: "It was not started before it expired.",
    FailureKind.SNOOZED_OUT: "It put itself off too often.",
    FailureKind.SUPERSEDED: "A newer job with its key has taken its place.",
    FailureKind.CRASH_LOOP: "It is in quarantine: its process died under it again and again, with nobody else in it.",
}


class Story(Struct, frozen=True, kw_only=True):
    """A job and all that is kept beside it, as of one moment."""

    job: Job
    attempts: list[Attempt] = []
    logs: list[LoggedLine] = []
    workers: list[WorkerRecord] = []
    settings: list[QueueSettings] = []

    @property
    def worker(self) -> WorkerRecord | None:
        return next((worker for worker in self.workers if worker.id == self.job.worker), None)

    @property
    def ready_since(self) -> datetime:
        """Since when it could have run: it may be due for a time before it was made, or before its last run ended."""
        return max(self.job.run_at, self.job.created_at, *(attempt.finished_at for attempt in self.attempts))

    @property
    def paused(self) -> bool:
        return any(queue.paused for queue in self.settings if queue.name == self.job.queue)


def story_op(engine: "Engine", job: Job) -> Op[Story]:
    def steps() -> Steps[Story]:
        [fresh] = yield from engine.get([job.id]).start()
        if fresh is None:
            raise JobNotFound(f"Job #{job.number} ({job.id}) was deleted a moment ago.")
        return Story(
            job=fresh,
            attempts=(yield from engine.attempts(job.id).start()),
            logs=(yield from engine.logs(job.id).start()),
            workers=(yield from engine.workers().start()),
            settings=(yield from engine.settings().start()),
        )

    return Op(start=steps, mode="read")


@click.command()
@takes_words("[STORE] JOB")
@click.option("--traceback", "all_traces", is_flag=True, help="The tracebacks of all attempts.")
@click.option(
    "--logs", "log_lines", metavar="N", type=click.IntRange(0),
    help=f"So many of the last log lines.  [default: {LOG_LINES}]",
)  # fmt: skip
@click.option("--decrypt", is_flag=True, help="What is encrypted, by the keys of the app or the environment.")
@click.option(
    "--json", "as_json", is_flag=True, help="For programs: the job, its attempts and its log lines."
)
@takes_target
def show(
    ctx: click.Context,
    words: tuple[str, ...],
    *,
    all_traces: bool,
    log_lines: int | None,
    decrypt: bool,
    as_json: bool,
) -> None:
    """Show one job: its state, what has happened to it, its errors, its log.

    A JOB is a number, such as 42, or an id.
    """
    store, jobs = split_jobs(ctx, words)
    if len(jobs) > 1:
        raise click.UsageError(f"{jobs[1]!r} is one word too many: show takes a store and a job.", ctx)
    target = target_of(ctx)
    with closing(target.existing_store(store)) as engine:
        story = engine.run(story_op(engine, pick(engine, jobs[0])))
    if decrypt:
        from shigoto.cli.secrets import keys_of

        story = decrypted(story, keys_of(target))
    story = presentable(story)

    if as_json:
        output.print_json(record(story, log_lines))
        return
    log_lines = LOG_LINES if log_lines is None else log_lines
    lines = page(
        story,
        datetime.now(UTC),
        width=output.width_of(),
        all_traces=all_traces,
        log_lines=log_lines,
        hint=target.hint(store),
    )
    output.print_lines(lines)


def presentable(story: Story) -> Story:
    return structs.replace(
        story,
        job=presented(story.job),
        attempts=presented_attempts(story.attempts),
        logs=presented_lines(story.logs),
    )


def decrypted(story: Story, keys: "Encryption") -> Story:
    """The story of a job, decrypted. Secret parameters are still left out when it is shown. Raises
    EncryptionKeyMissing."""
    job = story.job
    return structs.replace(
        story,
        job=structs.replace(
            job,
            payload=opened(keys, job.payload, job, "payload"),
            result=_opened_text(keys, job, "result", job.result),
            progress_text=_opened_text(keys, job, "progress", job.progress_text),
            error=_opened_text(keys, job, "error", job.error),
        ),
        attempts=[
            structs.replace(
                each,
                error=_opened_text(keys, job, "error", each.error),
                traceback=_opened_text(keys, job, "traceback", each.traceback),
            )
            for each in story.attempts
        ],
        logs=[structs.replace(each, text=opened(keys, each.text, job, "log")) for each in story.logs],
    )


def _opened_text(keys: "Encryption", job: Job, field: Field, text: str | None) -> str | None:
    return None if text is None else opened(keys, text, job, field)


def record(story: Story, log_lines: int | None) -> dict[str, object]:
    """The story for programs; all its log lines, unless a number was given."""
    return {
        "job": output.record(story.job),
        "worker": story.worker,
        "attempts": story.attempts,
        "logs": story.logs if log_lines is None else story.logs[len(story.logs) - log_lines :],
    }


def page(
    story: Story,
    now: datetime,
    *,
    width: int | None,
    all_traces: bool,
    log_lines: int,
    hint: CommandHint = NO_HINT,
) -> list[str]:
    """The lines for people. On a terminal (one with a width) times are local and short, else ISO 8601 in UTC."""
    job = story.job
    title = f"#{job.number} {output.one_line(job.task)}: "
    state = f"{job.state} ({job.failure_kind})" if job.failure_kind else str(job.state)
    lines = [click.style(title, bold=True) + output.paint_state(state)]
    for sentence in meaning(story, now, hint):
        lines += output.wrapped(sentence, width, first="  ", later="  ")
    lines.append("")
    for label, text in facts(job, now, width):
        lines += _labelled(label, text, width)
    lines += ["", click.style("Timeline", bold=True)]
    told = timeline(story, now, brief=width is not None)
    lines += [f"  {line if width is None else output.clip(line, max(1, width - 2))}" for line in told]
    for title, trace in traces(story, every=all_traces):
        lines += ["", click.style(title, bold=True), *(f"  {line}" for line in output.lines_of(trace))]
    if story.logs and log_lines:
        lines += ["", *_log(story, now, count=log_lines, brief=width is not None)]
    return lines


def meaning(story: Story, now: datetime, hint: CommandHint = NO_HINT) -> Iterator[str]:
    """What the state of the job comes to, in sentences; hints name the store as it was said."""
    job = story.job
    retry = hint.command("retry", str(job.number))
    match job.state:
        case State.PENDING:
            yield from _waiting(story, now, hint)
        case State.PROCESSING:
            yield from _running(story, now, hint)
        case State.COMPLETED:
            asked = ", although it was asked to stop" if job.cancel_requested_at else ""
            yield f"It completed on attempt {job.attempt}{asked}."
        case State.FAILED:
            yield KINDS[job.failure_kind or FailureKind.ERROR]
            yield f"`{retry}` gives it another chance."
        case State.CANCELLED:
            yield f"It was cancelled. `{retry}` gives it another chance."
        case State.BLOCKED:
            yield "It waits for other jobs."
        case _:
            assert_never(job.state)


def _waiting(story: Story, now: datetime, hint: CommandHint) -> Iterator[str]:
    job = story.job
    if job.run_at > now:
        again = "is tried again" if job.failures else "is due"
        yield f"It {again} in {output.span(job.run_at - now)}."
    else:
        yield f"It has been ready for {output.span(now - story.ready_since)} and waits for a worker."
    if job.suspect:
        yield "Its process died under it, so it runs next in a process of its own, to see whether it is to blame."
    if story.paused:
        yield f"Its queue, {job.queue}, is paused."
    yield from _untaken(job, [worker for worker in story.workers if worker.lease_until >= now], hint)


def _untaken(job: Job, live: list[WorkerRecord], hint: CommandHint) -> Iterator[str]:
    """Why none of the live workers takes the job, if that is known."""
    if not live:
        yield "No worker is alive."
        return
    staying = [worker for worker in live if not worker.stopping]
    knowing = [worker for worker in staying if job.task in worker.tasks]
    serving = [worker for worker in knowing if worker.queues is None or job.queue in worker.queues]
    if not staying:
        yield "Every live worker is about to stop."
    elif not knowing:
        yield "No live worker knows its task."
    elif not serving:
        yield f"No live worker takes jobs from its queue, {job.queue}."
    elif (job.alone or job.suspect) and not any(worker.isolates for worker in serving):
        yield (
            "It needs a process of its own, and no live worker has one to give."
            f" Start one by `{hint.command('worker')}`: those that are part of another program have none."
        )


def _running(story: Story, now: datetime, hint: CommandHint) -> Iterator[str]:
    job, worker = story.job, story.worker
    since = now - (job.started_at or now)
    if worker is None:
        yield "Its worker is gone; a sweep of any other one frees it within a minute."
    else:
        where = output.one_line(f"{worker.name} (process {worker.pid} on {worker.host})")
        yield f"It has been running for {output.span(since)}, attempt {job.attempt}, on {where}."
        if worker.lease_until < now:
            yield f"That worker has given no sign of life and is overdue by {output.span(now - worker.lease_until)}."
    if job.suspect:
        yield "It runs in a process of its own: it is suspected of having killed another."
    if job.cancel_requested_at is not None:
        yield (
            f"It was asked to stop {output.span(now - job.cancel_requested_at)} ago."
            f" `{hint.command('cancel', '--force', str(job.number))}` does not wait for it."
        )


def facts(job: Job, now: datetime, width: int | None) -> Iterator[tuple[str, str]]:
    """What was asked for and what was counted, as labels and texts; only what there is."""
    yield "id", str(job.id)
    yield "queue", f"{job.queue}, priority {job.priority}"
    for label, text in (("tenant", job.tenant), ("key", job.key), ("tags", ", ".join(job.tags))):
        if text:
            yield label, text
    yield "counts", counts(job)
    if limits := ", ".join(_limits(job, now, brief=width is not None)):
        yield "limits", limits
    for label, text in (("retry", job.retry), ("meta", job.meta), ("payload", job.payload)):
        if text is not None:
            yield label, text
    if job.progress is not None or job.progress_text is not None:
        share = "" if job.progress is None else f"{output.bar(job.progress)} {job.progress:.0%}  "
        yield "progress", f"{share}{job.progress_text or ''}"
    if job.result is not None:
        yield "result", job.result


def counts(job: Job) -> str:
    """How often what has happened; failures of how many, since those decide."""
    words = [
        f"attempt {job.attempt}" if job.attempt else "not started yet",
        f"{job.failures} of {job.max_failures} failures",
    ]
    for count, name in ((job.crashes, "crash"), (job.releases, "release"), (job.snoozes, "snooze")):
        if count:
            words.append(f"{count} {name}{'' if count == 1 else 'es' if name == 'crash' else 's'}")
    return ", ".join(words)


def _limits(job: Job, now: datetime, *, brief: bool) -> Iterator[str]:
    for millis, name in ((job.timeout, "time limit"), (job.soft_timeout, "soft time limit")):
        if millis is not None:
            yield f"{name} {output.span(timedelta(milliseconds=millis))}" if millis else f"no {name}"
    if job.expires_at is not None:
        yield f"expires {output.instant(job.expires_at, now, brief=brief)}"
    if job.alone:
        yield "a process of its own"
    if job.max_crashes is None:
        yield "any number of crashes"


def timeline(story: Story, now: datetime, *, brief: bool) -> list[str]:
    job = story.job
    events = [(job.created_at, "created")]
    if job.run_at != job.created_at:
        events.append((job.run_at, "due"))
    for attempt, number in numbered(story.attempts):
        length = output.span(attempt.finished_at - attempt.started_at)
        error = f": {output.brief(attempt.error)}" if attempt.error else ""
        events.append((attempt.started_at, f"attempt {number} {attempt.outcome} after {length}{error}"))
    if job.state is State.PROCESSING and job.started_at is not None:
        events.append((job.started_at, f"attempt {job.attempt} started"))
    if job.state is State.COMPLETED and job.started_at is not None and job.finished_at is not None:
        length = output.span(job.finished_at - job.started_at)
        events.append((job.started_at, f"attempt {job.attempt} completed after {length}"))
    if job.cancel_requested_at is not None:
        events.append((job.cancel_requested_at, "asked to stop"))
    if job.finished_at is not None:
        events.append((job.finished_at, str(job.state)))
    events.sort(key=lambda event: event[0])  # stable: what has the same time stays in the order of its kind
    return [f"{output.instant(at, now, brief=brief)}  {text}" for at, text in events]


def numbered(attempts: Sequence[Attempt]) -> Iterator[tuple[Attempt, int]]:
    """The runs with the numbers that people know them by: a run that was given back is not counted."""
    given_back = 0
    for attempt in attempts:
        yield attempt, attempt.token - given_back
        given_back += attempt.outcome in GIVEN_BACK


def traces(story: Story, *, every: bool) -> list[tuple[str, str]]:
    """Tracebacks with their titles: of all attempts; or of the last one with an error, unless the job completed."""
    titled = [
        (f"Attempt {number}, {attempt.outcome}", attempt.traceback or attempt.error or "")
        for attempt, number in numbered(story.attempts)
        if attempt.traceback or attempt.error
    ]
    if every:
        return titled
    return [] if story.job.state is State.COMPLETED else titled[-1:]


def _log(story: Story, now: datetime, *, count: int, brief: bool) -> list[str]:
    shown = story.logs[-count:]
    given_back = [attempt.token for attempt in story.attempts if attempt.outcome in GIVEN_BACK]
    rest = f", the last {len(shown)} of {len(story.logs)} lines" if len(shown) < len(story.logs) else ""
    lines = [click.style(f"Log{rest}", bold=True)]
    for line in shown:
        number = line.token - sum(token < line.token for token in given_back)
        first, *more = output.lines_of(line.text)
        level = f"{output.one_line(line.level):<7}"
        lines.append(f"  {output.instant(line.at, now, brief=brief)}  attempt {number}  {level}  {first}")
        lines += [f"    {each}" for each in more]
    return lines


def _labelled(label: str, text: str, width: int | None) -> list[str]:
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… ({len(text)} characters; --json has them all)"
    first, *more = output.lines_of(text)
    room = None if width is None else width - LABEL - 2
    lines = [first] if room is None else _cut(first, room)
    for line in more:
        lines += [line] if room is None else _cut(line, room)
    return [f"  {label if place == 0 else '':<{LABEL}}{line}" for place, line in enumerate(lines)]


def _cut(text: str, width: int) -> list[str]:
    """The text in pieces of at most so many cells, broken anywhere: an argument has no words, and all of it counts."""
    width = max(width, 2)
    pieces = [""]
    taken = 0
    for letter in text:
        size = output.cells(letter)
        if taken + size > width:
            pieces.append("")
            taken = 0
        pieces[-1] += letter
        taken += size
    return pieces
