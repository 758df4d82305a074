"""show, workers, cancel, retry, rerun and redrive, called as the console script calls them."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import pytest

from shigoto.cli import output
from shigoto.cli.arguments import number_or_id
from shigoto.cli.jobs import workers_table
from shigoto.cli.show import Story, page
from shigoto.model.ids import uuid7
from shigoto.model.job import Attempt, FailureKind, Job, LoggedLine, LogLine, QueueSettings, State
from shigoto.model.worker import Ending, LogTail, WorkerRecord
from tests.unit.cli.pages import SnapshotCheck
from tests.unit.commands import Command, Store, on_terminal

NOW = datetime(2030, 5, 6, 12, tzinfo=UTC)
ANVIL = UUID(int=7)


def job(**changes: Any) -> Job:
    fields: dict[str, Any] = {"id": UUID(int=1), "number": 42, "task": "send", "queue": "mail", "tenant": ""}
    fields |= {"state": State.PENDING, "payload": '{"to":"Ada"}', "priority": 5, "max_failures": 4}
    fields |= {"run_at": ago(60), "created_at": ago(60)}
    return Job(**{**fields, **changes})


def worker(**changes: Any) -> WorkerRecord:
    fields: dict[str, Any] = {"id": ANVIL, "name": "anvil", "tasks": ("send",), "queues": None, "slots": 4}
    fields |= {"version": "1.2", "host": "smithy", "pid": 4711, "isolates": True, "stopping": False}
    fields |= {"started_at": ago(3_600), "lease_until": ago(-20), "fenced_at": None, "processing": 1}
    return WorkerRecord(**{**fields, **changes})


def attempt(token: int, outcome: str, **changes: Any) -> Attempt:
    fields: dict[str, Any] = {"error": None, "traceback": None, "started_at": ago(50 - token)}
    fields["finished_at"] = fields["started_at"] + timedelta(seconds=0.5)
    return Attempt(token=token, outcome=outcome, **{**fields, **changes})


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


# Which job


@pytest.mark.parametrize("word", ["42", "#42", "0042"])
def test_a_job_is_named_by_its_number(word: str) -> None:
    assert number_or_id(word) == 42


@pytest.mark.parametrize("word", ["", "#", "4 2", "-1", "٤٢", "abc", "1.0", "9" * 20])
def test_other_words_name_no_job(word: str) -> None:
    assert number_or_id(word) is None


def test_a_job_is_named_by_its_id_as_people_write_it() -> None:
    id = uuid7()

    assert number_or_id(str(id)) == number_or_id(str(id).upper()) == number_or_id(id.hex) == id


def test_every_command_finds_a_job_by_number_and_by_id(shigoto: Command, store: Store) -> None:
    spec = store.ended(Ending.FAILED)
    store.enqueue()

    for word in ("1", "#1", str(spec.id)):
        assert shigoto("show", "jobs.db", word, "--json").json["job"]["id"] == str(spec.id)


def test_the_default_store_may_be_left_out_though_a_file_is_called_like_a_job(shigoto: Command) -> None:
    Path("42").touch()

    assert "workers.db" in shigoto("show", "42").err


@pytest.mark.parametrize("name", ["show", "cancel", "retry", "rerun"])
@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "Which job? Write its number, such as 42, or its id."),
        (("jobs.db",), "Which job?"),
        (("jobs.db", "first"), "'first' is no job: write its number, such as 42 or '#42', or its id."),
    ],
)
def test_a_word_that_names_no_job_is_a_misuse(
    shigoto: Command, store: Store, name: str, words: tuple[str, ...], text: str
) -> None:
    outcome = shigoto(name, *words)

    assert outcome.code == 2
    assert text in outcome.err


@pytest.mark.parametrize("name", ["show", "cancel", "retry", "rerun"])
@pytest.mark.parametrize("word", ["3", "0701dbd9-6275-4b7e-8791-6c79c1f2b418", "9" * 19])
def test_a_job_that_is_not_there_is_an_error(shigoto: Command, store: Store, name: str, word: str) -> None:
    store.enqueue()

    outcome = shigoto(name, "jobs.db", word)

    assert outcome.code == 1
    assert outcome.err == (
        f"Error [JOB.NOT_FOUND]: There is no job {word}: it never was in this store, or its retention has"
        " passed.\n"
    )


# show


def test_show_tells_all_of_a_job(shigoto: Command, store: Store) -> None:
    lines = tuple(LogLine(line, 1_900_000_000_000, "INFO", f"line {line}") for line in range(1, 31))
    store.enqueue(priority=3, tags='["a","b"]', key="k", tenant="acme", meta='{"x":1}', timeout=90_000)
    store.settle(
        store.claim(),
        Ending.FAILED,
        error="ValueError: no such address",
        traceback='Traceback (most recent call last):\n  File "x.py"\nValueError: no such address',
        progress=0.5,
        progress_text="half-way",
        log=LogTail(1, lines),
    )

    shown = shigoto("show", "jobs.db", "1")

    assert shown.code == 0
    assert shown.lines[0] == "#1 send: failed (error)"
    text = shown.out
    for part in (
        "It raised an error, and has no retries left.",
        "queue     mail, priority 3",
        "tenant    acme",
        "key       k",
        "tags      a, b",
        'meta      {"x":1}',
        "counts    attempt 1, 1 of 6 failures",
        "limits    time limit 90 s",
        'payload   {"to":"Ada"}',
        "progress  ████████████░░░░░░░░░░░░ 50%  half-way",
        "attempt 1 failed after ",
        "  Traceback (most recent call last):",
        "Log, the last 20 of 30 lines",
        "INFO     line 30",
    ):
        assert part in text
    assert "line 10\n" not in text
    assert "line 1\n" in shigoto("show", "jobs.db", "1", "--logs", "50").out
    assert "Log" not in shigoto("show", "jobs.db", "1", "--logs", "0").out


def test_show_gives_programs_the_job_its_attempts_and_its_log(shigoto: Command, store: Store) -> None:
    store.enqueue()
    store.settle(store.claim(), Ending.ERRORED, error="no", traceback="trace", delay=0)
    lines = tuple(LogLine(line, 1_900_000_000_000, "INFO", f"line {line}") for line in range(1, 31))
    store.settle(store.claim(), Ending.COMPLETED, result="7", log=LogTail(1, lines))

    told = shigoto("show", "jobs.db", "1", "--json").json

    assert told.keys() == {"job", "worker", "attempts", "logs"}
    assert told["job"].keys() == set(Job.__struct_fields__)
    assert (told["job"]["payload"], told["job"]["result"]) == ({"to": "Ada"}, 7)
    assert [(run["token"], run["outcome"], run["traceback"]) for run in told["attempts"]] == [
        (1, "errored", "trace")
    ]
    assert [line["text"] for line in told["logs"]] == [f"line {line}" for line in range(1, 31)]
    few = shigoto("show", "jobs.db", "1", "--json", "--logs", "2").json["logs"]
    assert [(line["token"], line["line"]) for line in few] == [(2, 29), (2, 30)]
    assert shigoto("show", "jobs.db", "1", "--json", "--logs", "0").json["logs"] == []


def test_show_names_the_worker_of_a_running_job(shigoto: Command, store: Store) -> None:
    store.enqueue()
    store.claim()

    assert "on anvil (process 4711 on smithy)." in shigoto("show", "jobs.db", "1").out
    assert shigoto("show", "jobs.db", "1", "--json").json["worker"]["name"] == "anvil"


def test_show_takes_one_job(shigoto: Command, store: Store) -> None:
    assert "'2' is one word too many" in shigoto("show", "jobs.db", "1", "2").err


def pending(*, workers: list[WorkerRecord] | None = None, **changes: Any) -> Story:
    return Story(job=job(**changes), workers=[worker()] if workers is None else workers)


def running(*workers: WorkerRecord, **changes: Any) -> Story:
    fields: dict[str, Any] = {"state": State.PROCESSING, "attempt": 1, "started_at": ago(12), "worker": ANVIL}
    return Story(job=job(**{**fields, **changes}), workers=list(workers))


def stories() -> dict[str, Story]:
    released = [
        attempt(token, "released", started_at=ago(left + 1), finished_at=ago(left))
        for token, left in ((1, 90), (2, 30))
    ]
    outcomes = ["errored", "released", "snoozed", "errored", "crashed"]
    traced = [
        attempt(1, "errored", traceback="first"),
        attempt(2, "crashed", error="killed"),
        attempt(3, "released"),
    ]
    in_order = [attempt(1, "errored", error="ValueError: no\nsuch \x1b[31maddress"), attempt(2, "released")]
    times: dict[str, Any] = {"run_at": ago(40), "started_at": ago(30), "finished_at": ago(28)}
    logs = [LoggedLine(token=1, line=n, at=ago(50 - n), level="INFO", text=f"line {n}") for n in range(1, 31)]
    return {
        "All of a job": Story(
            job=job(
                state=State.FAILED,
                failure_kind=FailureKind.ERROR,
                error="ValueError: no",
                tags=("a", "b"),
                key="k",
                tenant="acme",
                meta='{"x":1}',
                timeout=90.0,
                attempt=1,
                failures=1,
                progress=0.5,
                progress_text="half-way",
            ),
            attempts=[attempt(1, "failed", error="ValueError: no", traceback="Traceback:\nValueError: no")],
            logs=logs,
        ),
        "It waits for a worker": pending(),
        "It is due later": pending(run_at=ago(-90)),
        "It is tried again": pending(run_at=ago(-5), failures=2, attempt=2),
        "It is suspected, its queue is paused, and no worker is alive": Story(
            job=job(suspect=True), settings=[QueueSettings(name="mail", paused=True)]
        ),
        "No live worker knows its task": pending(
            workers=[worker(tasks=("other",)), worker(lease_until=ago(5))]
        ),
        "No live worker takes jobs from its queue": pending(workers=[worker(queues=("slow",))]),
        "Every live worker is about to stop": pending(workers=[worker(stopping=True)]),
        "No live worker has a process of its own to give": pending(
            alone=True, workers=[worker(isolates=False), worker(tasks=("other",))]
        ),
        "It waits since it was made, and not since it was due": pending(
            run_at=ago(9_000), created_at=ago(20)
        ),
        "It waits since it was given back": Story(
            job=job(run_at=ago(9_000), created_at=ago(9_000)), workers=[worker()], attempts=released
        ),
        "It runs alone on a worker without a sign of life": running(
            worker(lease_until=ago(7)), attempt=3, suspect=True
        ),
        "Its worker is gone, and it was asked to stop": running(cancel_requested_at=ago(3)),
        "It runs, with the times of its attempts": running(worker()),
        "It completed although it was asked to stop": Story(
            job=job(state=State.COMPLETED, attempt=2, cancel_requested_at=ago(3))
        ),
        "It was cancelled": Story(job=job(state=State.CANCELLED)),
        "It waits for other jobs": Story(job=job(state=State.BLOCKED)),
        **{
            f"It failed by {kind}": Story(job=job(state=State.FAILED, failure_kind=kind))
            for kind in FailureKind
        },
        "Counts are told where there are any": Story(
            job=job(attempt=3, failures=2, crashes=1, releases=1, snoozes=2)
        ),
        "One is not many": Story(job=job(attempt=9, crashes=2, releases=2, snoozes=1)),
        "Runs that were given back are not counted as attempts": Story(
            job=job(), attempts=[attempt(token, outcome) for token, outcome in enumerate(outcomes, 1)]
        ),
        "A timeline tells what happened in order": Story(
            job=job(state=State.COMPLETED, attempt=2, cancel_requested_at=ago(29), **times), attempts=in_order
        ),
        "The last traceback of a job that has failed is shown": Story(job=job(failures=1), attempts=traced),
        "No traceback of a job that has completed is shown": Story(
            job=job(state=State.COMPLETED, attempt=2), attempts=traced
        ),
    }


def test_a_page_tells_all_of_a_job(snapshot: SnapshotCheck) -> None:
    pages = {
        title: "\n".join(page(story, NOW, width=None, all_traces=False, log_lines=20))
        for title, story in stories().items()
    }

    snapshot("show", pages)


def test_all_tracebacks_are_shown_when_asked_for() -> None:
    *_, failed, completed = stories().values()

    for story in (failed, completed):
        lines = [click.unstyle(line) for line in page(story, NOW, width=None, all_traces=True, log_lines=20)]
        assert lines[-5:] == ["Attempt 1, errored", "  first", "", "Attempt 2, crashed", "  killed"]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_page_about_a_job_fits_the_terminal(width: int) -> None:
    story = Story(
        job=job(
            payload='{"text":"' + "日本語" * 100 + '"}',
            state=State.PROCESSING,
            started_at=ago(5),
            worker=ANVIL,
            progress=0.3,
            progress_text="a long text about what is going on",
            tags=("one", "two", "three"),
        ),
        attempts=[attempt(1, "errored", error="x" * 500)],
        workers=[worker()],
    )

    lines = page(story, NOW, width=width, all_traces=False, log_lines=20)

    before_traces = lines[: next(place for place, line in enumerate(lines) if "Attempt 1" in line)]
    for line in before_traces[1:]:
        assert output.cells(click.unstyle(line)) <= width


def test_nothing_that_a_job_says_on_its_page_can_command_the_terminal() -> None:
    hostile = "a\x1b[2Jb\r\n\tc\x9b31m"
    story = Story(
        job=job(
            payload=hostile, progress_text=hostile, result=hostile, meta=hostile, key=hostile, tags=(hostile,)
        ),
        attempts=[attempt(1, "errored", error=hostile, traceback=hostile)],
        logs=[LoggedLine(token=1, line=1, at=ago(5), level=hostile, text=hostile)],
    )

    for width in (None, 80):
        for line in page(story, NOW, width=width, all_traces=True, log_lines=20):
            assert click.unstyle(line).isprintable()


def test_a_long_argument_is_cut_for_people() -> None:
    lines = page(Story(job=job(payload="x" * 5_000)), NOW, width=None, all_traces=False, log_lines=0)

    [payload] = [line for line in lines if "xxx" in line]
    assert payload.endswith("x… (5000 characters; --json has them all)")


# workers


def test_workers_are_shown_with_their_leases(shigoto: Command, store: Store) -> None:
    store.enqueue()
    store.claim()

    header, line = shigoto("workers", "jobs.db").out.splitlines()

    assert header.split() == [
        *("worker", "host", "pid", "queues", "slots", "jobs", "since", "lease", "alone", "state", "version")
    ]
    name, host, pid, queues, slots, jobs, _, left, second, _, alone, state, version = line.split()
    assert [name, host, pid, queues, slots, jobs] == ["anvil", "smithy", "4711", "all", "4", "1"]
    assert 25 < float(left) <= 30
    assert [second, alone, state, version] == ["s", "no", "working", "1.2"]
    [told] = shigoto("workers", "jobs.db", "--json").json
    assert told.keys() == set(WorkerRecord.__struct_fields__)
    assert (told["name"], told["pid"], told["processing"]) == ("anvil", 4711, 1)


def test_no_workers_is_said(shigoto: Command, store: Store) -> None:
    store.engine.run(store.engine.leave(store.worker))

    assert shigoto("workers", "jobs.db").out == "There are no workers.\n"
    assert shigoto("workers", "jobs.db", "--json").json == []


def test_an_overdue_lease_is_said_and_a_narrow_terminal_shows_what_matters() -> None:
    late = worker(lease_until=ago(65), queues=("a", "b"), stopping=True, host="", pid=0)

    wide = workers_table([late, worker()], 200, NOW)
    assert "65 s overdue" in click.unstyle(wide[1])
    assert "\x1b[31m" in wide[1]
    assert "a,b" in wide[1]
    assert "stopping" in wide[1]
    assert wide[1].split()[1:3] == ["-", "-"]
    assert "20 s left" in wide[2]
    narrow = [click.unstyle(line) for line in workers_table([late, worker()], 40, NOW)]
    assert max(map(len, narrow)) <= 40
    assert narrow[0].split() == ["worker", "jobs", "lease", "state"]


# cancel, retry, rerun


def test_cancel_tells_of_every_job_and_fails_if_one_could_not_be(shigoto: Command, store: Store) -> None:
    store.ended(Ending.COMPLETED)
    store.enqueue()
    store.claim()
    store.enqueue()

    outcome = shigoto("cancel", "jobs.db", "3", "2", "1", "9")

    assert outcome.code == 1
    assert outcome.lines == ["#3 (send) is cancelled.", "#2 (send) is running and was asked to stop."]
    assert outcome.err.splitlines()[0] == (
        "Error [CLI.NOT_CANCELLED]: #1 (send) is completed and cannot be cancelled."
    )
    assert outcome.err.splitlines()[1].startswith("Error [JOB.NOT_FOUND]: There is no job 9")
    again = shigoto("cancel", "jobs.db", "3")
    assert (again.code, again.lines) == (0, ["#3 (send) was cancelled before."])


def test_cancel_by_force_takes_running_jobs_at_once(shigoto: Command, store: Store) -> None:
    store.enqueue()
    store.claim()

    outcome = shigoto("cancel", "jobs.db", "1", "--force", "--yes")

    assert outcome.lines == ["#1 (send) is cancelled by force; what it was to do may have happened."]
    assert store.state(1) == "cancelled"
    assert "What it was to do may have happened" in shigoto("cancel", "--help").out.replace("\n  ", " ")


def test_retry_makes_failed_and_cancelled_jobs_ready_again(shigoto: Command, store: Store) -> None:
    store.ended(Ending.FAILED)
    store.ended(Ending.CANCELLED)
    store.ended(Ending.COMPLETED)

    outcome = shigoto("retry", "jobs.db", "1", "#2", "3")

    assert outcome.code == 1
    assert outcome.lines == ["#1 (send) is ready again.", "#2 (send) is ready again."]
    assert outcome.err.startswith("Error [JOB.NOT_RETRYABLE]: Job #3 (send, ")
    assert "Use rerun" in outcome.err
    assert [store.state(number) for number in (1, 2, 3)] == ["pending", "pending", "completed"]


def test_a_job_that_is_named_twice_is_retried_once(shigoto: Command, store: Store) -> None:
    store.ended(Ending.FAILED)

    assert shigoto("retry", "jobs.db", "1", "1").code == 0


def test_rerun_makes_a_new_job(shigoto: Command, store: Store) -> None:
    store.ended(Ending.COMPLETED, key="k")
    store.enqueue()

    outcome = shigoto("rerun", "jobs.db", "1", "2")

    assert outcome.code == 1
    new = shigoto("show", "jobs.db", "3", "--json").json["job"]
    assert outcome.lines == [f"#1 (send) runs again as #3 ({new['id']})."]
    assert (new["payload"], new["key"], new["state"]) == ({"to": "Ada"}, None, "pending")
    assert "Job #2" in outcome.err
    assert "only jobs that have ended can be rerun" in outcome.err


def test_for_programs_every_job_is_a_record(shigoto: Command, store: Store) -> None:
    failed = store.ended(Ending.FAILED)
    completed = store.ended(Ending.COMPLETED)

    cancelled = shigoto("cancel", "jobs.db", "2", "--json")
    retried = shigoto("retry", "jobs.db", "1", "7", "--json")
    rerun = shigoto("rerun", "jobs.db", "#2", "--json")

    assert (cancelled.code, retried.code, rerun.code) == (1, 1, 0)
    assert cancelled.json == [
        {
            "job": "2",
            "id": str(completed.id),
            "number": 2,
            "state": "completed",
            "error": {
                "code": "CLI.NOT_CANCELLED",
                "message": "#2 (send) is completed and cannot be cancelled.",
            },
        }
    ]
    first, missing = retried.json
    assert first == {"job": "1", "id": str(failed.id), "number": 1, "state": "pending"}
    assert (missing["job"], missing["error"]["code"]) == ("7", "JOB.NOT_FOUND")
    [made] = rerun.json
    assert (made["job"], made["number"], made["rerun"]["number"]) == ("#2", 2, 3)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_what_was_done_is_a_success_even_if_it_cannot_be_told(shigoto: Command, store: Store) -> None:
    """A script that runs the command again after an error would have the new job twice."""
    store.ended(Ending.COMPLETED)

    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "shigoto", "rerun", "jobs.db", "1"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )

    assert done.returncode == 0
    assert done.stderr.startswith("Warning: standard output cannot be written: No space left on device.")
    assert "#1 (send) runs again as #2" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", [(), ("--json",)])
def test_what_a_redrive_did_is_told_on_the_other_stream_if_need_be(
    shigoto: Command, store: Store, words: tuple[str, ...]
) -> None:
    store.ended(Ending.FAILED)
    store.ended(Ending.FAILED)

    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "shigoto", "redrive", "jobs.db", "--yes", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )

    assert done.returncode == 0
    assert "2 of 2 failed jobs retried: #1, #2." in done.stderr
    assert store.state(1) == "pending"


@pytest.mark.skipif(sys.platform == "win32", reason="a shell closes it")
@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("redrive jobs.db", 2, "There is no terminal to ask on"),
        ("redrive jobs.db --yes", 0, ""),
        ("cancel jobs.db 2 --force", 2, "There is no terminal to ask on: add --yes."),
        ("cancel jobs.db 2 --force --yes", 0, ""),
        ("show jobs.db 1", 0, ""),
    ],
)
def test_a_standard_input_that_is_closed_answers_nothing(
    shigoto: Command, store: Store, words: str, code: int, text: str
) -> None:
    store.ended(Ending.FAILED)
    store.enqueue()
    store.claim()

    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "{sys.executable}" -m shigoto {words} <&-'],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert text in done.stderr


# redrive


def test_of_several_jobs_with_one_key_redrive_takes_the_newest(shigoto: Command, store: Store) -> None:
    for _ in range(3):
        store.ended(Ending.FAILED, key="k")

    dry = shigoto("redrive", "jobs.db", "--dry-run")
    wet = shigoto("redrive", "jobs.db", "--yes")

    assert dry.out == "1 failed job would be retried: #3.\n"
    assert dry.err == "Not retried, a newer one has the same unique key: #1, #2.\n"
    assert wet.out == "1 of 3 failed jobs retried.\n"
    assert wet.err == "Not retried, another job holds the unique key: #1, #2.\n"
    assert [store.state(number) for number in (1, 2, 3)] == ["failed", "failed", "pending"]


def test_a_kind_of_failure_of_cancelled_jobs_is_refused(shigoto: Command, store: Store) -> None:
    outcome = shigoto("redrive", "jobs.db", "--state", "cancelled", "--kind", "error", "--yes")

    assert outcome.code != 0
    assert "Only failed jobs have a kind of failure" in outcome.err


def test_redrive_retries_what_has_failed_and_tells_what_it_left(shigoto: Command, store: Store) -> None:
    store.ended(Ending.FAILED)
    store.ended(Ending.FAILED, details={"failure_kind": FailureKind.CRASH_LOOP})
    store.ended(Ending.FAILED, key="k")
    store.enqueue(key="k")

    outcome = shigoto("redrive", "jobs.db", "--yes")

    assert (outcome.code, outcome.out) == (0, "1 of 2 failed jobs retried.\n")
    assert outcome.err.splitlines() == [
        "Not retried, another job holds the unique key: #3.",
        "Left alone, in quarantine: #2. With --kind crash_loop they are retried.",
    ]
    assert (
        shigoto("redrive", "jobs.db", "--kind", "crash_loop", "--yes").out == "1 of 1 failed job retried.\n"
    )


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (("--queue", "mail"), [1, 3]),
        (("--task", "send"), [1, 2, 3]),
        (("--tag", "t"), [2]),
        (("--key", "k"), [3]),
        (("--tenant", "acme"), [3]),
        (("--kind", "timeout"), [1]),
        (("--state", "cancelled"), [4]),
        (("--limit", "2"), [2, 3]),
    ],
)
def test_redrive_takes_the_filters_of_list(
    shigoto: Command, store: Store, words: tuple[str, ...], numbers: list[int]
) -> None:
    store.ended(Ending.FAILED, details={"failure_kind": FailureKind.TIMEOUT})
    store.ended(Ending.FAILED, queue="slow", tags='["t"]')
    store.ended(Ending.FAILED, key="k", tenant="acme")
    store.ended(Ending.CANCELLED)

    dry = shigoto("redrive", "jobs.db", *words, "--dry-run", "--json").json
    wet = shigoto("redrive", "jobs.db", *words, "--yes", "--json").json

    assert [record["number"] for record in dry["retried"]] == numbers
    assert [record["number"] for record in wet["retried"]] == numbers
    assert (dry["dry_run"], wet["dry_run"], wet["key_taken"], wet["gone"]) == (True, False, [], [])


def test_a_dry_redrive_names_the_jobs_and_changes_nothing(shigoto: Command, store: Store) -> None:
    for _ in range(12):
        store.ended(Ending.FAILED)

    outcome = shigoto("redrive", "jobs.db", "--dry-run")

    assert outcome.out == (
        "12 failed jobs would be retried: #1, #2, #3, #4, #5, #6, #7, #8, #9, #10 and 2 more.\n"
    )
    assert store.state(1) == "failed"
    assert shigoto("redrive", "jobs.db", "--state", "cancelled", "--dry-run").out == (
        "0 cancelled jobs would be retried.\n"
    )


def test_without_a_terminal_to_ask_on_a_redrive_must_be_agreed_to(
    shigoto: Command, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ended(Ending.FAILED)
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)

        outcome = shigoto("redrive", "jobs.db")

    assert outcome.code == 2
    assert "There is no terminal to ask on: add --yes, or --dry-run to look first." in outcome.err
    assert store.state(1) == "failed"


# On a terminal


def test_on_a_terminal_a_redrive_asks_first(shigoto: Command, store: Store) -> None:
    store.ended(Ending.FAILED)

    code, shown = on_terminal("n\n", "redrive", "jobs.db")
    assert code == 1
    assert "Retry 1 failed job? [y/N]:" in shown
    assert "Nothing was changed." in shown
    assert store.state(1) == "failed"

    code, shown = on_terminal("y\n", "redrive", "jobs.db")
    assert code == 0
    assert "1 of 1 failed job retried." in shown
    assert store.state(1) == "pending"


def test_on_a_terminal_a_long_redrive_shows_how_far_it_is(shigoto: Command, store: Store) -> None:
    for _ in range(150):
        store.enqueue()
    store.engine.run(store.engine.cancel([job.id for job in store.jobs()]))

    code, shown = on_terminal("", "redrive", "jobs.db", "--state", "cancelled", "--yes")

    assert code == 0
    assert "100 of 150" in shown
    assert "150 of 150 cancelled jobs retried." in shown


def test_on_a_terminal_force_says_what_it_means_and_asks(shigoto: Command, store: Store) -> None:
    store.enqueue()
    store.claim()
    store.enqueue()

    code, shown = on_terminal("n\n", "cancel", "jobs.db", "--force", "1", "2")
    assert code == 1
    assert "What it was to do may have happened all the same" in shown.replace("\r\n", " ")
    assert "Cancel 1 by force? [y/N]:" in shown
    assert (store.state(1), store.state(2)) == ("processing", "pending")

    code, shown = on_terminal("y\n", "cancel", "jobs.db", "--force", "1")
    assert (code, store.state(1)) == (0, "cancelled")

    code, shown = on_terminal("", "cancel", "jobs.db", "--force", "2")
    assert (code, store.state(2)) == (0, "cancelled")
    assert "by force?" not in shown


def test_errors_for_programs_stay_json(shigoto: Command, store: Store) -> None:
    outcome = shigoto("show", "jobs.db", "9", "--json")

    assert (outcome.code, outcome.out) == (1, "")
    assert json.loads(outcome.err)["error"]["code"] == "JOB.NOT_FOUND"
