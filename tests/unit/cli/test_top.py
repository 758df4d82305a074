"""The live view without a terminal: what it draws, what keys do, how rates are found, what is done to a store."""

import io
import os
import pty
import re
import signal
import termios
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from shigoto.cli.output import cells
from shigoto.cli.show import Story
from shigoto.cli.top import store as top_store
from shigoto.cli.top.app import rest
from shigoto.cli.top.store import (
    CancelJob,
    Choices,
    CountFailed,
    Panel,
    PauseQueue,
    RetryAll,
    RetryJob,
    TopQuery,
    TopSnapshot,
    act,
    asked,
    done,
    named,
    panel_filter,
    press,
    seen,
    snapshot_op,
)
from shigoto.cli.top.terminal import KEY_PATIENCE, Key, Keys, Terminal
from shigoto.cli.top.view import Scene, drawn, shared_out, spark
from shigoto.cli.watch import Canvas, Pace, Size
from shigoto.model.errors import JobNotFound, JobNotRetryable, OptionInvalid
from shigoto.model.ids import uuid7
from shigoto.model.job import Counts, FailureKind, Job, LoggedLine, State
from shigoto.model.time import host_clock
from shigoto.model.worker import Ending, WorkerRecord
from tests.unit.commands import Command, Store, command

NOW = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)
WORKER = uuid7()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.delenv("SHIGOTO_URL", raising=False)
    return command(capsys)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.chdir(tmp_path)
    store = Store()
    yield store
    store.engine.close()


def job(number: int = 1, **changes: Any) -> Job:
    fields: dict[str, Any] = {"id": uuid7(), "number": number, "task": "send", "queue": "mail", "tenant": ""}
    fields |= {"state": State.PROCESSING, "payload": '{"to":"Ada"}', "priority": 0, "run_at": NOW}
    fields |= {"created_at": NOW, "started_at": NOW - timedelta(seconds=12), "attempt": 1, "max_failures": 6}
    return Job(**{**fields, "worker": WORKER, **changes})


def failed(number: int = 1, **changes: Any) -> Job:
    fields = {"state": State.FAILED, "finished_at": NOW, "failure_kind": FailureKind.ERROR, "worker": None}
    return job(number, **{**fields, "error": "ValueError: out of stock", **changes})


def worker(**changes: Any) -> WorkerRecord:
    fields: dict[str, Any] = {"id": WORKER, "name": "anvil", "tasks": ("send",), "queues": None, "slots": 4}
    fields |= {"version": "1", "host": "smithy", "pid": 4711, "isolates": True, "stopping": False}
    fields |= {"started_at": NOW, "lease_until": NOW + timedelta(seconds=20), "fenced_at": None}
    return WorkerRecord(**{**fields, "processing": 1, **changes})


def snapshot(**changes: Any) -> TopSnapshot:
    queues = {"mail": Counts(pending=5, scheduled=2, processing=1, completed=40, failed=2), "news": Counts()}
    fields: dict[str, Any] = {"queues": queues, "paused": frozenset({"news"}), "workers": [worker()]}
    fields |= {"running": [job(9), job(8)], "failed": [failed(7), failed(6)]}
    return TopSnapshot(**{**fields, **changes})


def picture(
    choices: Choices | None = None,
    shown: TopSnapshot | None = None,
    *,
    size: tuple[int, int] = (100, 30),
    pace: Pace | None = None,
    colour: bool = False,
) -> list[str]:
    shown = snapshot() if shown is None else shown
    choices = seen(Choices(), shown) if choices is None else choices
    scene = Scene(
        store="jobs.db",
        snapshot=shown,
        pace=pace or Pace(),
        choices=choices,
        size=Size(*size),
        now=NOW,
        colour=colour,
    )
    return drawn(scene)


def pressed(choices: Choices, *keys: str, shown: TopSnapshot | None = None) -> tuple[Choices, object]:
    """The view after keys, and the last action that one of them asked for."""
    shown = snapshot() if shown is None else shown
    action: object = None
    for key in keys:
        choices, asked = press(choices, Key(key), shown, panel_filter)
        action = asked or action
    return choices, action


def started(shown: TopSnapshot | None = None) -> Choices:
    return seen(Choices(), snapshot() if shown is None else shown)


def on_line(lines: list[str], pattern: str) -> str:
    [line] = [line for line in lines if re.search(pattern, line)]
    return line


# The picture


def test_the_picture_shows_store_workers_queues_running_jobs_failures_and_keys() -> None:
    lines = picture()

    assert len(lines) == 30
    assert lines[0].startswith("shigoto top  jobs.db")
    assert lines[0].endswith(f"{NOW.astimezone():%H:%M:%S}")
    assert lines[1].startswith("1 live worker   0 jobs/s   0 failed/min   ▁▁▁")
    assert lines[2] == "1 processing   3 ready   2 failed   2 scheduled   40 completed   0 cancelled"
    assert lines[3].startswith("[Queues: 2] ───")
    headings = "queue state ready scheduled processing completed failed cancelled jobs/s"
    assert on_line(lines, "jobs/s$").split() == headings.split()
    assert on_line(lines, "^> mail").split() == [">", "mail", "open", "3", "2", "1", "40", "2", "0", "-"]
    assert on_line(lines, "paused").split()[:2] == ["news", "paused"]
    assert on_line(lines, "#9").split() == ["#9", "send", "mail", "12", "s", "1", "anvil"]
    assert "ValueError: out of stock" in on_line(lines, "#7")
    assert lines[-1] == "q quit   ? help   Tab panel   p pause/resume   / filter"


def test_workers_that_are_overdue_or_stopping_are_counted_apart() -> None:
    late = worker(lease_until=NOW - timedelta(seconds=1), stopping=True)

    lines = picture(shown=snapshot(workers=[worker(), late, worker(stopping=True)]))
    nobody = picture(shown=snapshot(workers=[]))

    assert lines[1].startswith("1 live worker   1 overdue   1 stopping")
    assert nobody[1].startswith("0 live workers")


def test_progress_crashes_and_cancels_of_running_jobs_are_shown() -> None:
    running = [
        job(9, progress=0.45, progress_text="page 5 of 11"),
        job(8, attempt=2, crashes=1),
        job(7, attempt=3, crashes=2, cancel_requested_at=NOW),
        job(6, worker=uuid7()),
    ]

    lines = picture(shown=snapshot(running=running), size=(140, 30))

    assert "█████░░░░░  45%  page 5 of 11" in on_line(lines, "#9")
    assert "2, after a crash" in on_line(lines, "#8")
    assert "3, after 2 crashes, asked to stop" in on_line(lines, "#7 .*12 s")
    assert on_line(lines, "#6 .*12 s").endswith("  gone")


def test_a_panel_without_rows_says_so_in_its_title() -> None:
    lines = picture(shown=snapshot(running=[], failed=[], queues={}))
    filtered = picture(Choices(filtered="task:x"), snapshot(running=[], failed=[]))

    assert "Queues: no queue yet" in lines[3]
    assert on_line(lines, "Running: no job runs")
    assert on_line(lines, "Last failures: no job has failed")
    assert on_line(filtered, "Running: none that matches")
    assert filtered[-2] == "Jobs that match task:x (Esc shows all)"


def test_before_the_first_look_the_picture_says_what_is_wrong() -> None:
    scene = Scene(
        store="jobs.db",
        snapshot=None,
        pace=Pace(),
        choices=Choices(trouble="There is no such file: jobs.db. Trying again."),
        size=Size(80, 24),
        now=NOW,
        colour=False,
    )

    lines = drawn(scene)

    assert lines[1] == "No look at the store yet."
    assert lines[-2] == "There is no such file: jobs.db. Trying again."


def test_a_long_message_takes_a_few_lines_and_never_more() -> None:
    lines = picture(structs.replace(started(), trouble="word " * 200), size=(60, 24))

    assert [line.startswith("word") for line in lines[-5:]] == [False, True, True, True, False]


@pytest.mark.parametrize("size", [(40, 10), (41, 11), (60, 14), (80, 24), (132, 43), (300, 100)])
@pytest.mark.parametrize("panel", list(Panel))
@pytest.mark.parametrize("colour", [False, True])
def test_the_picture_fills_any_terminal_exactly(size: tuple[int, int], panel: Panel, colour: bool) -> None:
    wide = "日本語の長い名前" * 5
    many = snapshot(
        queues={f"{wide}{number}": Counts(completed=10**9) for number in range(40)},
        running=[job(number, task=wide, progress=0.5, progress_text=wide) for number in range(90, 50, -1)],
        failed=[failed(number, error=wide, queue=wide) for number in range(50, 10, -1)],
    )

    choices = seen(Choices(panel=panel), many)
    lines = [click.unstyle(line) for line in picture(choices, many, size=size, colour=colour)]

    assert len(lines) == size[1]
    assert max(cells(line) for line in lines) <= size[0]
    chosen = {Panel.QUEUES: "日", Panel.RUNNING: "#90", Panel.FAILURES: "#50"}[panel]
    assert any(line.startswith(">") and chosen in line for line in lines), "the chosen row is always there"


@given(
    columns=st.integers(1, 120),
    height=st.integers(1, 50),
    text=st.text(max_size=60),
    scrolled=st.integers(0, 99),
)
def test_nothing_that_a_job_or_a_person_wrote_gets_out_of_its_line(
    columns: int, height: int, text: str, scrolled: int
) -> None:
    name = text or "x"
    shown = snapshot(
        queues={name: Counts(failed=1)},
        workers=[worker(name=name)],
        running=[job(task=name, queue=name, progress=0.1, progress_text=text)],
        failed=[failed(task=name, queue=name, error=text)],
    )
    story = Story(job=shown.failed[0], logs=[LoggedLine(token=1, line=1, at=NOW, level=name, text=text)])
    for choices in (
        Choices(panel=Panel.RUNNING, filtered=text),
        Choices(typed=text),
        Choices(page="job", opened=story.job, scrolled=scrolled),
        Choices(page="help", scrolled=scrolled, trouble=text),
    ):
        lines = picture(
            seen(choices, shown), structs.replace(shown, story=story), size=(columns, height), colour=False
        )

        assert len(lines) == height
        assert all(line.isprintable() for line in lines)
        assert max(cells(line) for line in lines) <= columns


def test_a_terminal_that_is_too_small_is_told() -> None:
    lines = picture(size=(39, 10))

    assert lines[0] == "The terminal is too small: 39x10, and"
    assert lines[1] == "40x10 is the least."


def test_a_chosen_row_deep_in_a_list_is_shown_with_what_is_around_it() -> None:
    shown = snapshot(running=[job(number) for number in range(100, 60, -1)])
    choices, _ = pressed(started(shown), "tab", *["down"] * 20, shown=shown)

    lines = picture(choices, shown, size=(80, 24))

    place = lines.index(on_line(lines, "> "))
    assert "#80" in lines[place]
    assert ("#81" in lines[place - 1], "#79" in lines[place + 1]) == (True, True)


def test_lines_are_shared_out_by_need_with_more_for_the_panel_in_focus() -> None:
    assert shared_out([5, 4, 3], 20, 0) == [5, 4, 3]
    assert shared_out([50, 50, 50], 30, 1) == [8, 15, 7]
    assert shared_out([50, 50, 50], 6, 2) == [1, 1, 4]
    assert shared_out([50, 50, 50], 5, 0) == [3, 1, 1]
    assert shared_out([2, 50, 2], 12, 0) == [2, 8, 2]


def test_only_lines_that_changed_are_written_again_and_a_redraw_writes_all() -> None:
    paper = io.StringIO()
    canvas = Canvas(paper, whole=True)
    canvas.enter()
    canvas.draw(["one", "two"])
    paper.truncate(0)

    canvas.draw(["one", "three"])
    changes = paper.getvalue().lstrip("\0")
    paper.truncate(0)
    canvas.redraw()
    canvas.draw(["one", "three"])

    assert changes == "\x1b[2;1H\x1b[Kthree"
    assert "one" in paper.getvalue()


# Rates


def counts(completed: int, failures: int = 0) -> dict[str, Counts]:
    return {"mail": Counts(completed=completed, failed=failures)}


def test_rates_are_those_of_the_last_ten_seconds_and_failures_of_the_last_minute() -> None:
    pace = Pace()
    for second in range(100):
        pace = pace.after(
            second, counts(5 * second if second < 50 else 250 + 20 * (second - 50), second // 10)
        )

    assert pace.per_second() == pytest.approx(20.1, abs=0.2)
    assert pace.per_second("mail") == pace.per_second()
    assert pace.per_second("news") == 0
    assert pace.failures_of_last_minute() == 6
    assert len(pace.samples) < 65


def test_jobs_that_are_retried_or_pruned_are_no_negative_work() -> None:
    pace = Pace().after(0, counts(1_000, 10)).after(1, counts(10, 2)).after(2, counts(20, 3))

    assert pace.per_second() == 11 / 2
    assert pace.failures_of_last_minute() == 1


def test_a_queue_that_appears_later_counts_from_nothing_and_the_first_look_counts_nothing() -> None:
    pace = Pace().after(0, {}).after(2, counts(8))

    assert (pace.per_second(), pace.per_second("mail")) == (4, 4)
    assert (Pace().per_second(), Pace().after(0, counts(9)).per_second()) == (0, 0)
    assert (Pace().columns(), Pace().failures_of_last_minute()) == ([0.0] * 30, 0)


def test_the_last_minute_is_a_picture_of_thirty_columns() -> None:
    pace = Pace()
    for second in range(0, 61, 5):
        pace = pace.after(second, counts(10 * second if second <= 30 else 300))

    columns = pace.columns()

    assert len(columns) == 30
    assert columns[:15] == pytest.approx([20.0] * 15)
    assert columns[15:] == pytest.approx([0.0] * 15)
    assert spark(columns) == "█" * 15 + "▁" * 15
    assert spark([0, 1, 50, 100]) == "▁▂▅█"


# Keys as a terminal sends them


def test_bytes_become_keys_whatever_the_pieces_they_come_in() -> None:
    sent = "jé日\t\r\x7f\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[1;5C\x1b[Z\x1b[99~\x03\x15\x0c".encode()
    names = [
        "j",
        "é",
        "日",
        "tab",
        "enter",
        "backspace",
        "up",
        "down",
        "page_up",
        "page_down",
        "right",
        "back_tab",
        "interrupt",
        "clear",
        "redraw",
    ]

    whole, pieces = Keys(), Keys()

    assert [key.name for key in whole.feed(sent)] == names
    assert [key.name for byte in sent for key in pieces.feed(bytes([byte]))] == names


def test_escape_is_a_key_when_nothing_follows() -> None:
    keys = Keys()

    assert (keys.feed(b"\x1b"), keys.patience) == ([], KEY_PATIENCE)
    assert (keys.give_up(), keys.patience) == ([Key("escape")], None)
    assert keys.give_up() == []
    assert keys.feed(b"\x1b\x1b[A") == [Key("escape"), Key("up")]


def no_bytes_of(*others: bytes) -> st.SearchStrategy[bytes]:
    """Any bytes but these."""
    return st.binary(max_size=12).map(
        lambda some: bytes(byte for byte in some if bytes([byte]) not in others)
    )


MESSAGES = st.builds(
    lambda kind, text, end: b"\x1b" + kind + text + end,
    st.sampled_from([b"]", b"P", b"_", b"^", b"X"]),
    no_bytes_of(b"\x07", b"\x18", b"\x1a", b"\x1b"),
    st.sampled_from([b"\x07", b"\x1b\\"]),
)
MOUSE = st.binary(min_size=3, max_size=3).map(lambda where: b"\x1b[M" + where)
REPORTS = st.from_regex(rb"\x1b\[[<=>?][0-?]{0,8}[ -/]?[@-~]", fullmatch=True)
WITH_ALT = st.integers(0, 255).map(lambda byte: bytes([byte])).filter(lambda byte: byte < b"\x80")
WITH_ALT = WITH_ALT.filter(lambda byte: byte not in b"[]OP_^X\x1b").map(lambda byte: b"\x1b" + byte)
NO_KEYS = st.one_of(
    MESSAGES, MOUSE, REPORTS, WITH_ALT, st.sampled_from([b"\x1b[I", b"\x1b[O", b"\x1b[12;40R"])
)


@given(several=st.lists(NO_KEYS, min_size=1, max_size=4), cuts=st.lists(st.integers(0, 60), max_size=4))
@example([b"\x1b]11;rgb:0000/0000/0000\x07"], [3])
@example([b"\x1bP1$r0m\x1b\\"], [8])
@example([b"\x1b[Mrrr", b"\x1b[M\x1bcy"], [3])
@example([b"\x1b[<0;10;10M\x1b[<0;10;10m"], [])
@example([b"\x1br", b"\x1b\xc3\xa9", b"\x1b\xe6\x97\xa5"], [3, 4, 7])
def test_what_a_terminal_says_by_itself_and_letters_with_alt_are_no_keys(
    several: list[bytes], cuts: list[int]
) -> None:
    sent, keys = b"".join(several), Keys()
    pieces = [sent[start:end] for start, end in pairwise([0, *sorted(cuts), max(60, len(sent))])]

    assert [key for piece in pieces for key in keys.feed(piece)] == []
    assert keys.patience is None
    assert keys.feed(b"j") == [Key("j")], "and the next key is one again"


def test_enter_of_the_number_pad_is_a_key_and_what_breaks_off_in_the_middle_is_none() -> None:
    keys = Keys()

    assert keys.feed(b"\x1bOM\x1b[12\x1b[B") == [Key("enter"), Key("down")]
    for begun in (b"\x1b[", b"\x1bO", b"\x1b[1;", b"\x1b[M!", b"\x1b]11;rgb", b"\x1b]0\x1b", b"\x1bP"):
        assert keys.feed(begun) == []
        waits = keys.patience is not None
        assert (waits, keys.give_up(), keys.patience) == (True, [], None)
    assert keys.feed(b"\x1b]0;a message without end\x1b[A") == [Key("up")]


def test_what_is_pasted_is_one_key_and_not_many() -> None:
    keys = Keys()

    assert keys.feed(b"\x1b[200~cy\x1b[A q") == []
    assert (keys.patience, keys.give_up()) == (None, [])
    assert keys.feed(b"!\x1b[201~j") == [Key("paste", "cy\x1b[A q!"), Key("j")]
    long = keys.feed(b"\x1b[200~" + b"x" * 99_999) + keys.feed(b"\x1b[20") + keys.feed(b"1~q")
    assert [key.name for key in long] == ["paste", "q"]


# What keys do


def test_tab_goes_from_panel_to_panel_and_arrows_choose_within_one() -> None:
    choices, _ = pressed(started(), "down")
    assert (choices.panel, choices.cursor.chosen) == (Panel.QUEUES, "news")

    choices, _ = pressed(choices, "tab", "j", "j", "j")
    assert (choices.panel, choices.cursor.chosen) == (Panel.RUNNING, "8")

    choices, _ = pressed(choices, "tab", "G", "k")
    assert (choices.panel, choices.cursor.chosen) == (Panel.FAILURES, "7")

    choices, _ = pressed(choices, "tab", "end", "page_up", "back_tab", "page_down", "g")
    assert (choices.panel, choices.cursor.chosen) == (Panel.FAILURES, "7")


def test_the_choice_stays_with_its_job_and_where_that_is_gone_nothing_is_chosen_until_a_key_chooses() -> None:
    asked = (State.PROCESSING, 8)
    choices, _ = pressed(started(), "tab", "down")
    assert choices.cursor.chosen == "8"

    choices = seen(choices, snapshot(running=[job(11), job(10), job(9), job(8)], chosen=asked))
    assert (choices.cursor.chosen, choices.cursor.place) == ("8", 3)

    left = snapshot(running=[job(number) for number in (15, 14, 13, 12, 11)], chosen=asked)
    choices = seen(choices, left)
    lines = picture(choices, left)
    refused, nothing = pressed(choices, "c", "y", "enter", shown=left)
    assert (choices.cursor.chosen, choices.cursor.place) == (None, 3)
    assert not any(line.startswith(">") for line in lines)
    assert (nothing, refused.question, refused.page) == (None, None, "panels")
    assert seen(choices, snapshot()).cursor.chosen is None, "not even when more of them come"

    places = {key: pressed(choices, key, shown=left)[0].cursor.chosen for key in ("up", "down", "g", "G")}
    assert places == {"up": "13", "down": "12", "g": "15", "G": "11"}


def test_a_look_that_was_not_asked_for_the_chosen_job_does_not_lose_it() -> None:
    choices, _ = pressed(started(), "tab", "tab", "down")
    without = snapshot(failed=[failed(number) for number in (12, 11)], chosen=(State.FAILED, 7))

    meanwhile = seen(choices, without)
    _, nothing = pressed(meanwhile, "r", shown=without)
    found = seen(meanwhile, snapshot(failed=[failed(12), failed(6)], chosen=(State.FAILED, 6)))

    assert (meanwhile.cursor.chosen, nothing) == ("6", None)
    assert (found.cursor.chosen, found.cursor.place) == ("6", 1)


def test_a_panel_that_was_empty_when_it_was_turned_to_has_nothing_chosen() -> None:
    choices, _ = pressed(started(), "tab", "tab", shown=snapshot(failed=[]))

    choices, nothing = pressed(seen(choices, snapshot()), "r")

    assert (choices.cursor.chosen, nothing) == (None, None)
    assert pressed(choices, "down")[0].cursor.chosen == "7"


def test_whatever_is_seen_between_question_and_answer_the_answer_is_about_the_same_job() -> None:
    shown = snapshot()
    asking, _ = pressed(started(), "tab", "c", shown=shown)

    moved = seen(asking, snapshot(running=[job(12), job(11), job(10)], chosen=(State.PROCESSING, 9)))
    _, action = pressed(moved, "y", shown=snapshot(running=[job(12)]))

    assert action == CancelJob(shown.running[0].id, 9)


def test_p_pauses_the_chosen_queue_or_resumes_it() -> None:
    _, pause = pressed(started(), "p")
    _, resume = pressed(started(), "down", "p")
    choices, nothing = pressed(started(), "tab", "p")

    assert (pause, resume, nothing) == (PauseQueue("mail", True), PauseQueue("news", False), None)
    assert (choices.told.text, choices.told.bad) == ("Choose a queue first: Tab, then the arrows.", True)


def test_c_cancels_the_chosen_running_job_when_y_is_said() -> None:
    shown = snapshot()
    asking, nothing = pressed(started(), "tab", "c", shown=shown)
    refused, neither = pressed(asking, "x", shown=shown)
    _, cancel = pressed(asking, "y", shown=shown)

    assert asking.question is not None
    assert asking.question.text == "Ask #9 (send) to stop?"
    assert "Ask #9 (send) to stop? (y/n)" in picture(asking, shown)
    assert (nothing, neither, refused.question) == (None, None, None)
    assert refused.told.text == "Nothing was changed."
    assert cancel == CancelJob(shown.running[0].id, 9)


def test_r_retries_the_chosen_failure_and_big_r_all_of_its_task_when_y_is_said() -> None:
    shown = snapshot()
    _, retry = pressed(started(), "tab", "tab", "down", "r", shown=shown)
    choices, _ = pressed(started(), "/", *"queue:mail", "enter", shown=shown)
    counting, count = pressed(choices, "tab", "tab", "R", shown=shown)
    found = RetryAll("send", "queue:mail", count=12, quarantined=1)
    answered, redrive = pressed(asked(counting, found), "Y", shown=shown)

    assert retry == RetryJob(shown.failed[1].id, 6)
    assert count == counting.busy == CountFailed("send", "queue:mail")
    assert "Counting the failed jobs of send …" in picture(counting, shown)
    question = "Retry 12 failed jobs of send that match queue:mail (1 more stay in quarantine)? (y/n)"
    assert question in picture(asked(counting, found), shown)
    assert (redrive, answered.busy) == (found, found)


def test_a_question_that_comes_while_somebody_types_is_not_asked() -> None:
    typing, _ = pressed(started(), "tab", "tab", "R", "/", *"ke")

    choices, action = pressed(asked(typing, RetryAll("send", count=3)), "y")

    assert (choices.typed, choices.question, action) == ("key", None, None)
    assert "press R again" in picture(asked(typing, RetryAll("send", count=3)))[-2]


@pytest.mark.parametrize(("keys", "kind"), [("r", "failed"), ("R", "failed"), ("c", "running")])
def test_a_key_that_has_no_job_to_act_on_says_what_to_choose(keys: str, kind: str) -> None:
    choices, action = pressed(started(), keys)

    assert action is None
    assert choices.told.text == f"Choose a {kind} job first: Tab, then the arrows."


def test_only_one_thing_is_done_at_a_time() -> None:
    busy, first = pressed(started(), "p")
    choices, second = pressed(busy, "down", "p")
    asking, third = pressed(busy, "tab", "c")

    assert first == busy.busy == PauseQueue("mail", True)
    assert (second, third, asking.question) == (None, None, None)
    assert choices.told.text == asking.told.text == "One thing at a time: still pausing mail."
    assert "Pausing mail …" in picture(busy)
    assert done(choices, "mail is paused.").busy is None


def test_enter_opens_a_job_with_its_attempts_error_payload_and_log_and_escape_goes_back() -> None:
    shown = snapshot()
    choices, _ = pressed(started(), "tab", "tab", "enter", shown=shown)
    assert (choices.page, choices.opened) == ("job", shown.failed[0])
    assert "#7 is being looked up, or is gone." in picture(choices, shown)

    log = [LoggedLine(token=1, line=1, at=NOW, level="INFO", text="hello \x1b[31m")]
    told = structs.replace(shown, story=Story(job=shown.failed[0], logs=log))
    lines = picture(seen(choices, told), told)
    assert on_line(lines, r"#7 send: failed \(error\)")
    assert on_line(lines, "payload").endswith('{"to":"Ada"}')
    assert on_line(lines, "hello").endswith(r"hello \x1b[31m")
    assert lines[-1] == "q quit   Esc back   ↑ ↓ scroll"

    _, retry = pressed(choices, "r", shown=shown)
    back, _ = pressed(choices, "down", "escape", shown=shown)
    assert retry == RetryJob(shown.failed[0].id, 7)
    assert (back.page, back.opened, back.scrolled) == ("panels", None, 0)
    nowhere, _ = pressed(started(), "enter")
    assert nowhere.told.bad


def test_a_filter_is_typed_checked_and_taken_back() -> None:
    choices, action = pressed(started(), "/", *"task:x", "backspace", *"sendq")
    assert (choices.typed, action, choices.over) == ("task:sendq", None, False)
    assert picture(choices)[-2] == "filter: task:sendq_"

    applied, _ = pressed(choices, "backspace", "enter")
    assert (applied.typed, applied.filtered) == (None, "task:send")
    again, _ = pressed(applied, "/", "clear", "enter")
    assert again.filtered == ""
    left, _ = pressed(applied, "/", "x", "escape")
    assert (left.typed, left.filtered) == (None, "task:send")
    all_again, _ = pressed(applied, "escape")
    assert all_again.filtered == ""

    wrong, _ = pressed(started(), "/", *"colour:red", "enter")
    assert (wrong.typed, wrong.filtered, wrong.told.bad) == ("colour:red", "", True)
    assert "colour" in "".join(picture(wrong)[-3:])
    states, _ = pressed(started(), "/", *"state:failed", "enter")
    assert states.told.text.startswith("A state cannot be chosen here")
    mended, _ = pressed(states, "x")
    assert not mended.told.bad, "it is about what was typed then"


def test_pasted_text_goes_into_a_filter_and_nowhere_else() -> None:
    choices, action = press(started(), Key("paste", "qp"), snapshot(), panel_filter)
    assert (choices.over, action) == (False, None)

    typing, _ = pressed(choices, "/")
    typed, _ = press(typing, Key("paste", "task:a\nb" + "x" * 9_999), snapshot(), panel_filter)
    assert typed.typed is not None
    assert typed.typed.startswith("task:a b")
    assert len(typed.typed) == 500
    assert cells(picture(typed, size=(40, 10))[-2]) == 40


def test_help_is_shown_and_left_and_q_and_ctrl_c_end_it() -> None:
    helped, _ = pressed(started(), "?")
    lines = picture(helped)
    assert on_line(lines, "retry all failed jobs of its task that match the filter")
    assert (pressed(helped, "?")[0].page, pressed(helped, "escape")[0].page) == ("panels", "panels")

    assert pressed(helped, "q")[0].over
    assert pressed(started(), "q")[0].over
    typing, _ = pressed(started(), "/", "q")
    assert not typing.over
    assert pressed(typing, "interrupt")[0].over


# What is done to a store


def test_a_look_brings_what_the_panels_show(store: Store) -> None:
    for number in range(3):
        store.ended(Ending.FAILED, payload=f'{{"n":{number}}}')
    store.enqueue()
    store.claim()
    store.enqueue(queue="news", delay=60_000)
    act(store.engine, PauseQueue("empty", True))

    whole = store.engine.run(snapshot_op(store.engine, TopQuery()))
    few = store.engine.run(snapshot_op(store.engine, TopQuery(filtered="args.n:1", most=5)))
    one = store.engine.run(snapshot_op(store.engine, TopQuery(most=1, opened=whole.running[0])))
    gone = store.engine.run(snapshot_op(store.engine, TopQuery(opened=job())))

    assert list(whole.queues) == ["empty", "mail", "news"]
    assert whole.paused == {"empty"}
    assert ([job.number for job in whole.running], [job.number for job in few.failed]) == ([4], [2])
    assert sorted(job.number for job in whole.failed) == [1, 2, 3]
    assert whole.workers[0].name == "anvil"
    assert ([job.number for job in few.running], len(one.failed)) == ([], 1)
    assert one.story is not None
    assert (one.story.job.number, gone.story) == (4, None)


def test_a_state_is_no_filter_here(store: Store) -> None:
    with pytest.raises(OptionInvalid, match="A state cannot be chosen here"):
        snapshot_op(store.engine, TopQuery(filtered="state:failed"))


def test_actions_change_the_store_and_tell_what_came_of_it(store: Store) -> None:
    engine = store.engine
    first, second = store.ended(Ending.FAILED), store.ended(Ending.FAILED)
    running = store.enqueue()
    store.claim()
    waiting = store.enqueue()

    assert act(engine, PauseQueue("mail", True)) == "mail is paused: nothing of it is started."
    assert engine.run(engine.settings())[0].paused
    assert act(engine, PauseQueue("mail", False)) == "mail is resumed."
    assert act(engine, CancelJob(running.id, 3)) == "#3 was asked to stop."
    assert act(engine, CancelJob(waiting.id, 4)) == "#4 is cancelled."
    assert act(engine, CancelJob(first.id, 1)) == "#1 is failed and cannot be cancelled."
    assert act(engine, CancelJob(uuid7(), 9)) == "#9 is gone: its retention has passed."
    assert act(engine, RetryJob(first.id, 1)) == "#1 is ready again."
    assert act(engine, RetryAll("send")) == "1 failed job of send is ready again."
    assert {store.state(number) for number in (1, 2)} == {"pending"}
    with pytest.raises(JobNotRetryable):
        act(engine, RetryJob(second.id, 2))
    with pytest.raises(JobNotFound):
        act(engine, RetryJob(uuid7(), 9))


def test_a_redrive_tells_what_it_has_passed_over(store: Store) -> None:
    store.ended(Ending.FAILED, key="a")
    store.enqueue(key="a")

    assert act(store.engine, RetryAll("send")) == (
        "0 failed jobs of send are ready again; 1 passed over, since another holds the unique key."
    )
    assert named(RetryAll("send")) == "retrying the failed jobs of send"


def test_all_failed_jobs_of_a_task_are_counted_and_retried_within_the_filter(store: Store) -> None:
    loop = {"failure_kind": FailureKind.CRASH_LOOP}
    for queue, details in (("mail", {}), ("mail", {}), ("mail", loop), ("news", {})):
        store.ended(Ending.FAILED, queue=queue, details=details)

    def counted(filtered: str) -> object:
        return act(store.engine, CountFailed("send", filtered))

    assert counted("queue:mail") == RetryAll("send", "queue:mail", count=2, quarantined=1)
    assert counted("") == RetryAll("send", "", count=3, quarantined=1)
    assert counted("kind:crash_loop task:send") == RetryAll("send", "kind:crash_loop task:send", count=1)
    assert counted("queue:none") == "There is no failed job of send to retry."
    assert act(store.engine, RetryAll("send", "queue:mail")) == (
        "2 failed jobs of send are ready again; 1 left alone in quarantine."
    )
    assert [store.state(number) for number in (1, 2, 3, 4)] == ["pending", "pending", "failed", "failed"]
    assert act(store.engine, CountFailed("send", "queue:mail")) == (
        "There is no failed job of send to retry; 1 in quarantine."
    )


def next_millisecond() -> None:
    """Let the clock of the store go on, so that what comes now is later."""
    before = host_clock()
    while host_clock() == before:
        pass


def test_the_last_failures_are_those_that_failed_last_and_the_longest_runs_come_first(store: Store) -> None:
    slow, stuck = store.enqueue(), store.enqueue()
    leases = [store.claim(), store.claim()]
    for _ in range(60):
        store.ended(Ending.FAILED)
    next_millisecond()
    store.settle(leases[0], Ending.FAILED)
    store.enqueue()
    store.claim()

    snapshot = store.engine.run(snapshot_op(store.engine, TopQuery(most=3)))

    assert snapshot.failed[0].id == slow.id
    assert [job.number for job in snapshot.running] == [2, 63]
    assert (snapshot.running[0].id, len(snapshot.failed), snapshot.among) == (stuck.id, 3, {})


def test_a_chosen_job_is_seen_while_it_is_in_that_state_and_matches(store: Store) -> None:
    for queue in ("mail", *["news"] * 5):
        store.ended(Ending.FAILED, queue=queue)

    def seen_with(state: State, number: int, filtered: str = "") -> list[int]:
        look = TopQuery(most=2, chosen=(state, number), filtered=filtered)
        return [job.number for job in store.engine.run(snapshot_op(store.engine, look)).failed]

    assert seen_with(State.FAILED, 1) == [6, 5, 1]
    assert seen_with(State.FAILED, 6) == [6, 5]
    assert seen_with(State.FAILED, 1, "queue:news") == [6, 5]
    assert seen_with(State.PROCESSING, 1) == [6, 5]
    act(store.engine, RetryJob(store.jobs()[-1].id, 1))
    assert seen_with(State.FAILED, 1) == [6, 5]


def test_a_look_stays_small_whatever_there_is_and_says_what_it_saw(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top_store, "AMONG", 60)
    for _ in range(120):
        store.ended(Ending.FAILED)

    many = store.engine.run(snapshot_op(store.engine, TopQuery(most=5, chosen=(State.FAILED, 1))))
    monkeypatch.setattr(top_store, "HEAVY", 0)
    heavy = store.engine.run(snapshot_op(store.engine, TopQuery(most=5)))

    assert [job.number for job in many.failed] == [120, 119, 118, 117, 116, 1]
    assert (many.among, heavy.among) == ({State.FAILED: 100}, {State.FAILED: 50})
    assert on_line(picture(shown=many), "Last failures: 6 of 120, found among the newest 100 ─")


def test_the_next_look_comes_after_the_interval_and_never_before_ten_times_what_a_look_takes() -> None:
    assert [rest(1.0, took) for took in (0.001, 0.1, 0.25)] == [1.0, 1.0, 2.5]


# The terminal


def test_a_terminal_is_given_back_as_it_was_when_something_breaks() -> None:
    outer, inner = pty.openpty()
    before = termios.tcgetattr(inner)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGWINCH)}
    paper = io.StringIO()

    def break_off() -> None:
        with Terminal(inner, Canvas(paper, whole=True)) as terminal:
            assert not termios.tcgetattr(inner)[3] & (termios.ECHO | termios.ICANON)
            os.write(outer, b"j\x1b[A")
            assert terminal.wait(10) == [Key("j"), Key("up")]
            terminal.wake()
            assert terminal.wait(10) == []
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()

    assert termios.tcgetattr(inner) == before
    assert paper.getvalue().endswith("\x1b[0m\x1b[?2004l\x1b[?7h\x1b[?1049l\x1b[?25h")
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    os.close(outer)
    os.close(inner)


def test_a_terminal_that_was_never_told_its_size_is_taken_for_one_of_the_usual_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outer, inner = pty.openpty()
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    with os.fdopen(inner, "w") as stream:
        canvas = Canvas(stream, whole=True)
        assert all(canvas.size)
        termios.tcsetwinsize(outer, (12, 50))
        assert canvas.size == Size(50, 12)
        monkeypatch.setenv("COLUMNS", "70")
        monkeypatch.setenv("LINES", "20")
        assert canvas.size == Size(50, 12)
        termios.tcsetwinsize(outer, (0, 0))
        assert canvas.size == Size(70, 20)
    os.close(outer)


def test_the_beginning_of_a_key_is_waited_for_however_soon_the_next_look_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outer, inner = pty.openpty()
    with Terminal(inner, Canvas(io.StringIO(), whole=True)) as terminal:
        os.write(outer, b"\x1b")
        assert terminal.wait(10) == []
        terminal.wait(0)
        os.write(outer, b"[A")
        assert terminal.wait(10) == [Key("up")]
        os.write(outer, b"\x1b")
        assert terminal.wait(10) == []
        assert terminal.wait(10) == [Key("escape")]
    os.close(outer)
    os.close(inner)


def test_a_terminal_that_was_closed_is_gone_and_no_error() -> None:
    outer, inner = pty.openpty()
    stream = os.fdopen(os.dup(inner), "w")
    with Terminal(inner, Canvas(stream, whole=True)) as terminal:
        os.close(outer)
        terminal.take_again()
        assert terminal.gone
        terminal.draw(["a line"])
    os.close(inner)
    with pytest.raises(OSError, match="Input/output"):
        stream.close()


def test_without_a_terminal_top_is_refused_and_names_what_works(run: Command) -> None:
    outcome = run("top")

    assert outcome.code == 2
    assert "shigoto stats --watch" in outcome.err


@pytest.mark.parametrize("interval", ["0", "0.01", "61", "x"])
def test_an_interval_that_makes_no_sense_is_refused(run: Command, interval: str) -> None:
    assert run("top", "--interval", interval).code == 2
