"""Commands that take a filter: list, clear, cancel, retry and redrive, called as the console script calls them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shigoto.bulk import BATCH
from shigoto.cli import confirm
from shigoto.cli.bulk import NEVER
from shigoto.cli.confirm import ProgressBar
from shigoto.model.ids import uuid7
from shigoto.model.job import FailureKind, JobSpec, State
from shigoto.model.worker import Ending
from tests.unit.commands import Command, Store, command, on_terminal


@pytest.fixture
def shigoto(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Runs a command in an empty current directory, with nobody there to answer."""
    for name in ("SHIGOTO_APP", "SHIGOTO_URL", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield command(capsys)


@pytest.fixture
def full(store: Store) -> Store:
    """#1 completed, #2 failed, #3 cancelled, #4 running, #5 pending, #6 pending in another queue."""
    store.ended(Ending.COMPLETED)
    details: dict[str, Any] = {"error": "OSError: connection refused", "failure_kind": FailureKind.TIMEOUT}
    store.ended(Ending.FAILED, details=details, payload='{"store":7}')
    store.ended(Ending.CANCELLED)
    store.enqueue()
    store.claim()
    store.enqueue(payload='{"user":{"name":"Ada L"}}', key="a b", tags='["vip"]', tenant="acme")
    store.enqueue(queue="sms", task="text")
    return store


def enqueue_many(store: Store, count: int) -> None:
    specs = [JobSpec(id=uuid7(), task="send", queue="mail", payload="{}") for _ in range(count)]
    store.engine.run(store.engine.enqueue_many(specs))


def left(store: Store) -> list[int]:
    return sorted(job.number for job in store.jobs())


# list


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ((), [6, 5]),
        (("pending",), [6, 5]),
        (("all",), [6, 5, 4, 3, 2, 1]),
        (("queue:sms",), [6]),
        (("task:text",), [6]),
        (("failed", "queue:mail"), [2]),
        (("queue:mail", "state:failed"), [2]),
        (("queue:mail",), [5, 4, 3, 2, 1]),
        (("tag:vip",), [5]),
        (("key:a b",), [5]),
        (('key:"a b"',), [5]),
        (("tenant:acme",), [5]),
        (("worker:anvil",), [4]),
        (("kind:timeout",), [2]),
        (("error:Connection Refused",), [2]),
        (("since:1h",), [6, 5, 4, 3, 2, 1]),
        (("since:2000-01-01",), [6, 5, 4, 3, 2, 1]),
        (("since:2100-01-01T00:00:00Z",), []),
        (("args.store:7",), [2]),
        (("args.user.name:Ada L",), [5]),
        (("args.to:Ada", "pending"), [6]),
        (("--queue", "sms", "task:text"), [6]),
        (("tag:vip", "tenant:acme", "args.to:Ada"), []),
    ],
)
def test_list_takes_a_filter(
    shigoto: Command, full: Store, words: tuple[str, ...], numbers: list[int]
) -> None:
    """S0-41, S0-43"""
    assert [record["number"] for record in shigoto("list", "jobs.db", *words, "--json").json] == numbers


def test_the_store_may_be_left_out_before_a_filter(shigoto: Command) -> None:
    """S0-47: a term is not taken for the address of a store."""
    for words in (["list", "queue:mail"], ["list", "failed", "args.store:7"], ["cancel", "all", "--yes"]):
        assert "workers.db" in shigoto(*words).err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("stat:failed",), "There is no filter 'stat'. Did you mean 'state'?"),
        (("failed", "state:failed"), "The filter says state twice"),
        (("queue:mail", "--queue", "sms"), "The filter says queue twice"),
        (("since:2030-01-01T00:00:00",), "since has no time zone"),
        (("queue:mail state:failed",), "several terms in one word"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_a_misuse(
    shigoto: Command, store: Store, words: tuple[str, ...], text: str
) -> None:
    outcome = shigoto("list", "jobs.db", *words)

    assert (outcome.code, outcome.out) == (2, "")
    assert text in outcome.err


def test_a_list_that_finds_nothing_says_so(shigoto: Command, store: Store) -> None:
    assert shigoto("list", "jobs.db", "queue:sms").out == "There are no jobs that match.\n"
    assert shigoto("list", "jobs.db", "failed", "queue:sms").out == "There are no failed jobs that match.\n"


# clear


@pytest.mark.parametrize(
    ("words", "number"), [(("completed",), 1), (("failed", "--yes"), 2), (("cancelled", "--yes"), 3)]
)
def test_clear_deletes_what_has_ended_and_asks_no_script_about_completed_jobs(
    shigoto: Command, full: Store, words: tuple[str, ...], number: int
) -> None:
    """S0-46"""
    outcome = shigoto("clear", "jobs.db", *words)

    assert (outcome.code, outcome.out, outcome.err) == (0, f"1 {words[0]} job deleted.\n", "")
    assert left(full) == [each for each in range(1, 7) if each != number]
    assert shigoto("clear", "jobs.db", *words).out == f"0 {words[0]} jobs deleted.\n"


@pytest.mark.parametrize(
    "words",
    [
        ("pending",),
        ("all",),
        ("scheduled",),
        ("state:pending", "queue:mail"),
        ("failed",),
        ("cancelled",),
        ("kind:timeout",),
    ],
)
def test_jobs_that_have_not_run_or_tell_what_went_wrong_are_deleted_only_by_agreement(
    shigoto: Command, full: Store, words: tuple[str, ...]
) -> None:
    outcome = shigoto("clear", "jobs.db", *words)

    assert outcome.code == 2
    assert "There is no terminal to ask on: add --yes, or --dry-run to look first." in outcome.err
    assert len(left(full)) == 6


def test_jobs_that_have_not_run_are_deleted_with_a_warning(shigoto: Command, full: Store) -> None:
    outcome = shigoto("clear", "jobs.db", "pending", "queue:mail", "--yes")

    assert (outcome.code, outcome.out) == (0, "1 pending job deleted.\n")
    assert outcome.err == f"Warning: {NEVER}\n"
    assert left(full) == [1, 2, 3, 4, 6]

    assert shigoto("clear", "jobs.db", "all", "--yes").out == "4 jobs deleted.\n"
    assert left(full) == [4]


def test_clear_takes_filters_and_a_limit(shigoto: Command, full: Store) -> None:
    for _ in range(3):
        full.ended(Ending.COMPLETED, priority=9)

    assert shigoto("clear", "jobs.db", "completed", "--limit", "2").out == "2 completed jobs deleted.\n"
    assert left(full) == [2, 3, 4, 5, 6, 8, 9]
    timeouts = ("clear", "jobs.db", "--yes", "--kind", "timeout")
    assert shigoto(*timeouts, "args.store:8").out == "0 failed jobs deleted.\n"
    assert shigoto(*timeouts, "args.store:7").out == "1 failed job deleted.\n"
    assert left(full) == [3, 4, 5, 6, 8, 9]


def test_a_dry_clear_tells_how_many_and_changes_nothing(shigoto: Command, full: Store) -> None:
    def dry(*words: str) -> str:
        return shigoto("clear", "jobs.db", *words, "--dry-run").out

    assert dry("completed") == "1 completed job would be deleted, the newest: #1.\n"
    assert dry("all") == (
        "1 completed, 1 failed, 1 cancelled and 2 pending jobs would be deleted,"
        " the newest: #6, #5, #3, #2, #1.\n"
    )
    assert dry("pending", "--limit", "1") == "The oldest 1 of 2 pending jobs would be deleted.\n"
    assert dry("pending", "queue:nosuch") == "0 jobs would be deleted.\n"
    assert len(left(full)) == 6


def test_what_clear_did_is_told_to_programs(shigoto: Command, full: Store) -> None:
    dry = shigoto("clear", "jobs.db", "pending", "--dry-run", "--json")
    wet = shigoto("clear", "jobs.db", "pending", "--yes", "--json")

    assert dry.json == {"dry_run": True, "interrupted": False, "deleted": 2}
    assert wet.json == {"dry_run": False, "interrupted": False, "deleted": 2}
    assert wet.err == ""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "Which jobs? Name a state: completed, failed, cancelled, pending, or all of these."),
        (("queue:mail",), "Which jobs? Name a state"),
        (("processing",), "Jobs that are processing cannot be deleted: cancel them first."),
        (("complete",), "There is no state 'complete'. Did you mean 'completed'?"),
    ],
)
def test_a_clear_that_cannot_be_meant_deletes_nothing(
    shigoto: Command, full: Store, words: tuple[str, ...], text: str
) -> None:
    outcome = shigoto("clear", "jobs.db", *words, "--yes")

    assert outcome.code == 2
    assert text in outcome.err
    assert len(left(full)) == 6


def test_on_a_terminal_clear_asks_unless_the_jobs_are_completed(shigoto: Command, full: Store) -> None:
    code, shown = on_terminal("", "clear", "jobs.db", "completed")
    assert (code, "?" in shown) == (0, False)
    assert "1 completed job deleted." in shown

    code, shown = on_terminal("n\n", "clear", "jobs.db", "failed")
    assert code == 1
    assert "Delete 1 failed job? [y/N]:" in shown
    assert "Nothing was changed." in shown

    code, shown = on_terminal("y\n", "clear", "jobs.db", "all", "--limit", "3")
    assert code == 0
    assert shown.count(NEVER) == 1, "whoever has agreed was warned before"
    assert "Delete the oldest 3 of 1 failed, 1 cancelled and 2 pending jobs? [y/N]:" in shown
    assert left(full) == [4, 6]


@pytest.mark.parametrize("state", [State.PENDING, State.FAILED])
def test_what_comes_while_the_question_stands_is_not_deleted(
    shigoto: Command, store: Store, state: State
) -> None:
    def one() -> None:
        if state is State.PENDING:
            store.enqueue()
        else:
            store.ended(Ending.FAILED)

    def answer() -> str:
        one()
        return "y\n"

    for _ in range(3):
        one()

    code, shown = on_terminal("", "clear", "jobs.db", state, at_question=answer)

    assert (code, f"Delete 3 {state} jobs?" in shown) == (0, True)
    assert f"3 {state} jobs deleted." in shown
    assert [(job.number, job.state) for job in store.jobs()] == [(4, state)]


def test_ctrl_c_ends_a_clear_between_two_batches_with_an_exact_count(shigoto: Command, store: Store) -> None:
    count = 40 * BATCH
    enqueue_many(store, count)

    code, shown = on_terminal("", "clear", "jobs.db", "pending", "--yes", interrupt_at=f"{BATCH} of {count}")

    assert code == 130
    deleted = count - store.engine.run(store.engine.stats())["mail"].pending
    assert 0 < deleted < count
    assert f"Interrupted: {deleted} pending jobs deleted." in shown
    assert "Traceback" not in shown


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_what_clear_did_is_a_success_even_if_it_cannot_be_told(shigoto: Command, full: Store) -> None:
    with Path("/dev/full").open("w") as disk:
        done = subprocess.run(
            [sys.executable, "-m", "shigoto", "clear", "jobs.db", "completed"],
            stdin=subprocess.DEVNULL,
            stdout=disk,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )

    assert done.returncode == 0
    assert "cannot be written: No space left on device. 1 completed job deleted." in done.stderr


# cancel and retry with a filter


def test_cancel_by_filter_takes_what_waits_and_asks_what_runs(shigoto: Command, full: Store) -> None:
    """S1-3"""
    outcome = shigoto("cancel", "jobs.db", "queue:mail", "since:1h", "--yes")

    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "1 of 2 jobs cancelled, 1 running asked to stop.\n"
    assert [full.state(number) for number in (4, 5, 6)] == ["processing", "cancelled", "pending"]


def test_cancel_by_filter_and_by_force(shigoto: Command, full: Store) -> None:
    outcome = shigoto("cancel", "jobs.db", "all", "--force", "--yes", "--json")

    told = outcome.json
    assert [sorted(one["number"] for one in told[name]) for name in ("cancelled", "asked", "gone")] == [
        [4, 5, 6],
        [],
        [],
    ]
    assert (told["dry_run"], told["interrupted"]) == (False, False)
    assert full.state(4) == "cancelled"


def test_a_dry_cancel_names_the_jobs_and_changes_nothing(shigoto: Command, full: Store) -> None:
    dry = shigoto("cancel", "jobs.db", "all", "--dry-run")
    forced = shigoto("cancel", "jobs.db", "all", "--dry-run", "--force")
    limited = shigoto("cancel", "jobs.db", "all", "--dry-run", "--limit", "1", "--json")

    assert dry.out == "2 of 3 jobs would be cancelled, 1 running would be asked to stop: #6, #5, #4.\n"
    assert forced.out == "3 of 3 jobs would be cancelled: #6, #5, #4.\n"
    assert [one["number"] for one in limited.json["cancelled"]] == [6]
    assert [full.state(number) for number in (4, 5, 6)] == ["processing", "pending", "pending"]


@pytest.mark.parametrize("name", ["cancel", "retry", "redrive"])
def test_with_a_filter_and_without_a_terminal_it_must_be_agreed_to(
    shigoto: Command, full: Store, name: str
) -> None:
    for store in ("jobs.db", "absent.db"):
        outcome = shigoto(name, store, "queue:mail")

        assert outcome.code == 2
        assert "There is no terminal to ask on" in outcome.err


def test_force_must_be_agreed_to_for_single_jobs_as_well(shigoto: Command, full: Store) -> None:
    outcome = shigoto("cancel", "jobs.db", "4", "--force")

    assert (outcome.code, full.state(4)) == (2, "processing")
    assert "There is no terminal to ask on: add --yes." in outcome.err
    assert shigoto("cancel", "jobs.db", "4").code == 0
    assert shigoto("cancel", "jobs.db", "4", "--force", "--yes").code == 0
    assert full.state(4) == "cancelled"


@pytest.mark.parametrize("name", ["cancel", "retry"])
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("5", "queue:mail"), "Write the numbers of jobs or a filter, not both"),
        (("5", "--dry-run"), "--dry-run goes with a filter, not with the numbers of jobs."),
        (("5", "--limit", "1"), "--limit goes with a filter"),
        (
            ("pendin",),
            "'pendin' is no job: write its number, such as 42 or '#42', or its id. A filter is made",
        ),
    ],
)
def test_jobs_and_filters_are_told_apart(
    shigoto: Command, full: Store, name: str, words: tuple[str, ...], text: str
) -> None:
    outcome = shigoto(name, "jobs.db", *words)

    assert outcome.code == 2
    assert text in outcome.err
    assert full.state(5) == "pending"


def test_what_has_ended_cannot_be_cancelled_by_filter(shigoto: Command, full: Store) -> None:
    outcome = shigoto("cancel", "jobs.db", "failed", "--yes")

    assert outcome.code == 2
    assert "Jobs that are failed have ended and cannot be cancelled." in outcome.err


@pytest.mark.parametrize("name", ["retry", "redrive"])
def test_retry_with_a_filter_is_a_redrive(shigoto: Command, full: Store, name: str) -> None:
    """S0-72"""
    dry = shigoto(name, "jobs.db", "error:refused", "--dry-run")
    none = shigoto(name, "jobs.db", "error:nothing", "--yes")
    wet = shigoto(name, "jobs.db", "args.store:7", "--yes")
    cancelled = shigoto(name, "jobs.db", "cancelled", "--yes", "--json")

    assert dry.out == "1 failed job would be retried: #2.\n"
    assert none.out == "0 of 0 failed jobs retried.\n"
    assert wet.out == "1 of 1 failed job retried.\n"
    assert [one["number"] for one in cancelled.json["retried"]] == [3]
    assert full.state(2) == full.state(3) == "pending"


def test_on_a_terminal_a_cancel_by_filter_asks_first(shigoto: Command, full: Store) -> None:
    code, shown = on_terminal("n\n", "cancel", "jobs.db", "all")
    assert code == 1
    assert "Cancel 2 jobs, and ask 1 running to stop? [y/N]:" in shown

    code, shown = on_terminal("n\n", "cancel", "jobs.db", "all", "--force")
    assert "What it was to do may have happened all the same" in shown.replace("\r\n", " ")
    assert "Cancel 3 jobs, 1 of them by force? [y/N]:" in shown

    code, shown = on_terminal("n\n", "cancel", "jobs.db", "running")
    assert "Ask 1 running job to stop? [y/N]:" in shown

    code, shown = on_terminal("y\n", "cancel", "jobs.db", "queue:sms")
    assert code == 0
    assert "Cancel 1 job? [y/N]:" in shown
    assert full.state(6) == "cancelled"


def test_ctrl_c_ends_a_cancel_between_two_batches(shigoto: Command, store: Store) -> None:
    enqueue_many(store, 3_000)

    code, shown = on_terminal("", "cancel", "jobs.db", "all", "--yes", interrupt_at="100 of 3000")

    assert code == 130
    done = store.engine.run(store.engine.stats())["mail"].cancelled
    assert 0 < done < 3_000
    assert f"Interrupted: {done} of 3000 jobs cancelled." in shown


def test_a_bar_is_never_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "xterm")

    with ProgressBar(100_000, batch=1) as bar:
        bar.after_batch(50_000)

    drawn = capsys.readouterr().err.removesuffix("\r\x1b[K")
    assert drawn == "\r████████████░░░░░░░░░░░░ 500…"


def test_a_second_ctrl_c_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with ProgressBar(10, batch=1) as bar:
        assert bar.after_batch(1)
        os.kill(os.getpid(), signal.SIGINT)
        assert not bar.after_batch(2)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)

    assert bar.interrupted
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_program_that_shall_not_hear_ctrl_c_does_not() -> None:
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ProgressBar(10, batch=1) as bar:
            os.kill(os.getpid(), signal.SIGINT)
            assert bar.after_batch(1)
    finally:
        signal.signal(signal.SIGINT, former)


def test_errors_for_programs_stay_json(shigoto: Command, store: Store) -> None:
    outcome = shigoto("clear", "jobs.db", "pending", "--json")

    assert (outcome.code, outcome.out) == (2, "")
    assert json.loads(outcome.err)["error"]["code"] == "CLI.USAGE"


def test_a_report_names_ten_jobs_at_most() -> None:
    assert confirm.names([str(number) for number in range(12)]).endswith("8, 9 and 2 more")
