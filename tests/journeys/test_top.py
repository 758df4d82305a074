"""`shigoto top` as people meet it: a real terminal, a real store, a real worker."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shigoto import JobHandle, State
from shigoto.cli.top.terminal import END_PATIENCE
from tests.journeys.screens import PATIENCE, Recorder, Screen
from tests.journeys.yard import SHIGOTO, Yard, eventually

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal"),
]

SHOP = """
import asyncio, os, signal, time
from pathlib import Path
from shigoto import Context, Shigoto

app = Shigoto("sqlite:///shop.db")

@app.task
async def report(context: Context) -> None:
    # As far as the file says, until it says 1.
    while (level := float(Path("level").read_text() or 0)) < 1:
        context.progress(level, f"page {level * 20:.0f} of 20")
        await asyncio.sleep(0.02)

@app.task
def fall_once(context: Context, steps: int = 0) -> str:
    while not Path("fallen").exists():
        context.progress(0.05, "row 1")
        time.sleep(0.02)
        if Path("fall").exists():
            Path("fallen").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    for step in range(steps):
        context.progress(step / steps, f"row {step} of {steps}")
        time.sleep(0.1)
    while not Path("up").exists():
        time.sleep(0.02)
    return "up"

@app.task
def fail(name: str) -> None:
    raise ConnectionError(f"no answer from {name}")

@app.task
def thumbnail(number: int) -> int:
    time.sleep(0.02)
    return number

@app.task
def monthly(context: Context, pages: int) -> None:
    for page in range(pages):
        context.progress(page / pages, f"page {page} of {pages}")
        time.sleep(0.2)
"""

QUEUES = {
    "report": "reports",
    "monthly": "reports",
    "fall_once": "imports",
    "fail": "mail",
    "thumbnail": "thumbnails",
}

AFTER_A_CRASH = r"fall_once .* 2, after a crash .* (\d+%)"

Start = Callable[..., Screen]


def put(yard: Yard, task: str, **arguments: object) -> JobHandle[object]:
    """Store a job in the queue of its task; it is not retried."""
    return yard.app.enqueue_by_name(task, arguments, allow_unknown=True, queue=QUEUES[task], retries=0)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path, SHOP)
    (tmp_path / "level").write_text("0.1")
    yield yard
    yard.end()


@pytest.fixture
def start(yard: Yard) -> Iterator[Start]:
    """Starts `shigoto top` on a terminal; it never outlives the test."""
    screens: list[Screen] = []

    def begin(*words: str, program: list[str] | None = None, **size: int) -> Screen:
        words = ("top", "shop.db", "--interval", "0.2", *words)
        screen = Screen(
            [*SHIGOTO, *words] if program is None else program,
            folder=yard.folder,
            environment=yard.environment,
            **size,
        )
        screens.append(screen)
        return screen

    yield begin
    for screen in screens:
        screen.close()


def set_level(yard: Yard, level: float) -> None:
    """At once, so that nobody reads a file that is half written."""
    (yard.folder / "new level").write_text(str(level))
    (yard.folder / "new level").rename(yard.folder / "level")


def test_top_shows_progress_as_it_rises_and_a_job_that_came_back_after_a_crash(
    yard: Yard, start: Start
) -> None:
    yard.touch("fall")
    fallen = put(yard, "fall_once")
    yard.start("--name", "anvil")
    eventually(lambda: fallen.job().crashes == 1, yard.log)
    yard.make_due(fallen)  # it would wait for ten seconds
    report = put(yard, "report")
    screen = start()

    screen.until_shown("1 live worker", "Running: 2", "2, after a crash")
    screen.until(lambda: " 10%  page 2 of 20" in screen.line(" report "), "10%")
    set_level(yard, 0.6)
    screen.until(lambda: "██████░░░░  60%  page 12 of 20" in screen.line(" report "), "60%")
    assert re.search(r"#2 +report +reports .* m?s  1 .* anvil", screen.line(" report "))
    assert re.search(r"#1 +fall_once +imports .* m?s  2, after a crash +anvil", screen.line("fall_once"))

    set_level(yard, 1)
    yard.touch("up")
    screen.until_shown("Running: no job runs", "2 completed")
    assert (report.status(), fallen.status()) == (State.COMPLETED, State.COMPLETED)
    screen.type("q")
    assert screen.until_ended() == 0


def test_keys_pause_a_queue_cancel_a_running_job_and_retry_failed_ones(yard: Yard, start: Start) -> None:
    failed = [put(yard, "fail", name=name) for name in ("ada", "bob", "cyd")]
    report = put(yard, "report")
    yard.start("--name", "anvil")
    screen = start()
    screen.until_shown("Running: 1", "Last failures: 3", "no answer from ada")

    screen.type("p")
    screen.until_shown("mail is paused", "mail paused")
    engine = yard.app.engine
    assert [queue.name for queue in engine.run(engine.settings()) if queue.paused] == ["mail"]

    screen.type("\tc")
    screen.until_shown(f"Ask #{report.number} (report) to stop? (y/n)")
    screen.type("n")
    screen.until_shown("Nothing was changed.")
    assert report.job().cancel_requested_at is None
    screen.type("cy")
    screen.until_shown("Running: no job runs")
    assert report.status() is State.CANCELLED

    second = [line.split()[0] for line in screen.lines if " no answer from " in line][1]
    screen.type("\t\x1b[B")  # the arrow down
    screen.until(lambda: screen.line("> ").split()[1:3] == [second, "fail"], "the choice")
    screen.type("r")
    screen.until_shown(f"{second} is ready again.", "Last failures: 2")
    [retried] = [handle for handle in failed if f"#{handle.number}" == second]
    assert retried.status() is State.PENDING, "its queue is paused"

    assert "> " not in screen.text, "what was chosen is gone, and nothing else is chosen"
    screen.type("R")
    screen.until_shown("Choose a failed job first")
    screen.type("kR")
    screen.until_shown("Retry 2 failed jobs of fail? (y/n)")
    screen.type("y")
    screen.until_shown("2 failed jobs of fail are ready again.", "Last failures: no job has failed")
    assert {handle.status() for handle in failed} == {State.PENDING}

    screen.type("\tp")
    screen.until_shown("mail is resumed.", "Last failures: 3")
    assert [handle.job().failure_kind for handle in failed] == ["error"] * 3
    screen.type("q")
    assert screen.until_ended() == 0


def test_the_choice_stays_with_its_job_whatever_fails_meanwhile_and_however_small_the_window_is(
    yard: Yard, start: Start
) -> None:
    for number in range(40):
        put(yard, "fail", name=f"host-{number}")
    yard.start()
    screen = start("--interval", "0.1", lines=32)
    screen.until_shown("Last failures: 32 of 40")
    screen.type("\t\tG")
    screen.until(
        lambda: [line for line in screen.lines if " fail " in line][-1].startswith("> "), "the last row"
    )
    chosen = screen.line("> ").split()[1]

    for number in range(3):
        put(yard, "fail", name=f"late-{number}")
    screen.until_shown("Last failures: 33 of 43")
    assert screen.line("> ").split()[1] == chosen
    screen.resize(110, 14)
    screen.until_shown("Last failures: 15 of 43")
    assert screen.line("> ").split()[1] == chosen

    yard.app.pause("mail")
    screen.type("r")
    screen.until_shown(f"{chosen} is ready again.")
    screen.until(lambda: "> " not in screen.text, "the choice is gone with it")
    screen.type("q")
    assert screen.until_ended() == 0


def test_all_failed_jobs_of_a_task_are_retried_within_the_filter_on_the_screen(
    yard: Yard, start: Start
) -> None:
    ada, bob = (put(yard, "fail", name=name) for name in ("ada", "bob"))
    yard.start()
    screen = start()
    screen.until_shown("Last failures: 2")
    yard.app.pause("mail")

    screen.type("/args.name:ada\r")
    screen.until_shown("Last failures: 1 of 2")
    screen.type("\t\tR")
    screen.until_shown("Retry 1 failed job of fail that matches args.name:ada? (y/n)")
    screen.type("y")
    screen.until_shown("1 failed job of fail is ready again.")

    assert (ada.status(), bob.status()) == (State.PENDING, State.FAILED)
    screen.type("q")
    assert screen.until_ended() == 0


def test_a_job_is_opened_a_filter_typed_and_the_help_read(yard: Yard, start: Start) -> None:
    for name in ("ada", "bob"):
        put(yard, "fail", name=name)
    yard.start("--name", "anvil")
    screen = start()
    screen.until_shown("Last failures: 2")

    screen.type("/args.name:ada\r")
    screen.until_shown("Jobs that match args.name:ada", "Last failures: 1 of 2")
    screen.type("/\x15x\r")  # Ctrl-U empties it
    screen.until_shown("There is no state")
    screen.type("\x1b")
    screen.until_shown("Jobs that match args.name:ada")

    screen.type("\t\t\r")
    screen.until_shown("#1 fail: failed (error)", '{"name":"ada"}', "Timeline", "ConnectionError: no answer")
    screen.type("\x1b")
    screen.until_shown("Last failures: 1 of 2")
    screen.type("\x1b")
    screen.until_shown("Last failures: 2")
    screen.type("?")
    screen.until_shown("pause the chosen queue, or resume it")
    screen.type("q")
    assert screen.until_ended() == 0


@pytest.mark.parametrize("end", ["q", "\x03", signal.SIGTERM, signal.SIGHUP])
def test_whatever_ends_it_the_terminal_is_as_it_was(
    yard: Yard, start: Start, end: str | signal.Signals
) -> None:
    yard.app.engine.migrate()
    screen = start()
    screen.until_shown("Queues: no queue yet")
    assert not screen.is_plain()
    assert screen.modes != screen.modes_before

    if isinstance(end, str):
        screen.type(end)
    else:
        screen.process.send_signal(end)

    assert screen.until_ended() == 0
    assert screen.is_plain()
    assert screen.modes == screen.modes_before


def test_a_terminal_that_takes_no_output_holds_nobody_who_says_so_twice(yard: Yard, start: Start) -> None:
    yard.app.engine.migrate()
    screen = start()
    screen.until_shown("Queues: no queue yet")
    screen.hold()

    screen.process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        screen.process.wait(2 * END_PATIENCE)
    screen.process.send_signal(signal.SIGTERM)

    assert screen.process.wait(PATIENCE) == -signal.SIGTERM
    assert screen.modes == screen.modes_before


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_whoever_is_impatient_gets_the_terminal_back_as_well(
    yard: Yard, start: Start, end: signal.Signals
) -> None:
    yard.app.engine.migrate()
    screen = start()
    screen.until_shown("Queues: no queue yet")

    for _ in range(3):
        screen.process.send_signal(end)

    screen.until_ended()
    assert screen.is_plain()
    assert screen.modes == screen.modes_before


@pytest.mark.parametrize("ignored", [False, True], ids=["", "nohup"])
def test_a_terminal_that_is_closed_ends_it_without_a_complaint(
    yard: Yard, start: Start, ignored: bool
) -> None:
    yard.app.engine.migrate()
    trap = "trap '' HUP; " if ignored else ""
    words = shlex.join([*SHIGOTO, "top", "shop.db", "--interval", "0.1"])
    screen = start(program=["sh", "-c", f"{trap}exec {words} 2>errors"])
    screen.until_shown("Queues: no queue yet")

    screen.hang_up()

    screen.process.wait(PATIENCE)
    assert (yard.folder / "errors").read_text() == ""
    assert screen.process.returncode == 0


def test_a_terminal_without_a_size_is_drawn_on_all_the_same(yard: Yard, start: Start) -> None:
    yard.app.engine.migrate()
    screen = start()
    screen.until_shown("Queues: no queue yet")

    screen.resize(0, 0)

    seen = len(screen.raw)
    screen.until(lambda: b"shigoto top" in screen.raw[seen:], "the whole picture again")
    screen.type("q")
    assert screen.until_ended() == 0


def test_the_picture_follows_the_size_of_the_window(yard: Yard, start: Start) -> None:
    put(yard, "fail", name="ada")
    put(yard, "report")
    screen = start(columns=120, lines=40)
    screen.until_shown("q quit", "2 ready", "0 cancelled")

    screen.resize(40, 10)
    starts = ["shigoto top", "0 live", "[Queues: 2]", "  queue", "> mail", "  reports"]
    starts += [" Running", " Last", "", "q quit"]
    screen.until(
        lambda: all(line.startswith(start) for line, start in zip(screen.lines, starts, strict=True)),
        "a small picture",
    )
    screen.resize(30, 6)
    screen.until_shown("The terminal is too small:", "30x6")
    screen.resize(90, 24)
    screen.until(lambda: screen.lines[-1].startswith("q quit"), "the keys in the last line")

    screen.type("q")
    assert screen.until_ended() == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs a shell with job control")
def test_ctrl_z_gives_the_terminal_back_and_fg_draws_it_all_again(yard: Yard, start: Start) -> None:
    yard.app.engine.migrate()
    top = " ".join([*SHIGOTO, "top", "shop.db", "--interval", "0.2"])
    script = f"set -m; {top}; echo asleep; read line; fg >/dev/null; echo ended with $?"
    screen = start(program=["bash", "--norc", "-c", script])
    screen.until_shown("Queues: no queue yet")

    screen.type("\x1a")
    screen.until_shown("asleep")
    assert screen.is_plain()
    assert screen.modes == screen.modes_before

    put(yard, "thumbnail", number=1)
    screen.type("\r")
    screen.until_shown("Queues: 1", "thumbnails")
    assert not screen.is_plain()
    screen.type("q")
    screen.until_shown("ended with 0")
    assert screen.until_ended() == 0
    assert screen.is_plain()


def test_after_a_stop_that_it_could_not_foresee_it_takes_the_terminal_again(yard: Yard, start: Start) -> None:
    put(yard, "thumbnail", number=1)
    screen = start()
    screen.until_shown("thumbnails")

    screen.process.send_signal(signal.SIGSTOP)
    screen.reset()
    screen.read()
    seen = len(screen.raw)
    screen.process.send_signal(signal.SIGCONT)

    screen.until(lambda: b"thumbnails" in screen.raw[seen:], "the whole picture")
    assert screen.modes != screen.modes_before
    screen.type("q")
    assert screen.until_ended() == 0
    assert screen.modes == screen.modes_before


def test_a_store_that_is_not_there_yet_is_waited_for(yard: Yard, start: Start) -> None:
    screen = start()
    screen.until_shown("There is no such file", "Trying again.")
    assert not (yard.folder / "shop.db").exists(), "looking creates nothing"

    put(yard, "thumbnail", number=1)
    screen.until_shown("thumbnails")
    assert "There is no such file" not in screen.text

    for file in yard.folder.glob("shop.db*"):
        file.unlink()
    screen.until_shown("There is no such file")
    yard.app.close()
    put(yard, "report")
    screen.until_shown("reports")

    screen.type("q")
    assert screen.until_ended() == 0


def test_a_store_that_is_locked_is_told_and_keeps_nobody_from_looking_or_leaving(
    yard: Yard, start: Start
) -> None:
    put(yard, "thumbnail", number=1)
    screen = start()
    screen.until_shown("thumbnails")
    lock = sqlite3.connect(yard.folder / "shop.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")

    screen.type("p")
    screen.until_shown("Pausing thumbnails …")
    screen.type("p")
    screen.until_shown("One thing at a time: still pausing thumbnails.")
    screen.until_shown("is locked by another's transaction")
    screen.type("?")
    screen.until_shown("pause the chosen queue, or resume it")
    screen.type("\x1b")
    screen.until_shown("Pausing thumbnails …")

    lock.execute("ROLLBACK")
    screen.until(lambda: screen.line("> thumbnails").split()[2:3] == ["paused"], "paused")
    lock.execute("BEGIN IMMEDIATE")
    screen.type("p")
    screen.until_shown("Resuming thumbnails …")
    screen.type("q")
    assert screen.until_ended() == 0
    lock.close()


def test_an_action_that_comes_too_late_is_told(yard: Yard, start: Start) -> None:
    failed = put(yard, "fail", name="ada")
    yard.start()
    eventually(lambda: failed.status() is State.FAILED, yard.log)
    screen = start("--interval", "60")
    screen.until_shown("Last failures: 1")
    yard.app.pause("mail")
    yard.app.job(failed.id).retry()

    screen.type("\t\tr")

    screen.until_shown("is pending", "Last failures: no job has failed")
    screen.type("q")
    assert screen.until_ended() == 0


@pytest.mark.parametrize("terminal", ["dumb", None])
def test_without_a_terminal_that_can_be_drawn_on_top_names_what_works(
    yard: Yard, terminal: str | None
) -> None:
    words = [*SHIGOTO, "top", "shop.db"]
    if terminal is None:
        done = subprocess.run(
            words,
            cwd=yard.folder,
            env=yard.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        code, said = done.returncode, done.stderr.decode()
    else:
        screen = Screen(["env", f"TERM={terminal}", *words], folder=yard.folder, environment=yard.environment)
        code, said = screen.until_ended(), screen.text
        screen.close()

    assert code == 2
    assert "`shigoto stats --watch`" in said
    assert "\x1b" not in said


# The recording


@pytest.mark.skipif(
    shutil.which("tmux") is None and not os.environ.get("SHIGOTO_RECORDING"),
    reason="needs tmux, which is not installed here, and no recording is asked for by $SHIGOTO_RECORDING",
)
def test_a_recording_in_tmux_shows_running_progress_and_a_recovered_crash(yard: Yard) -> None:
    """Where $SHIGOTO_RECORDING names a file, the recording is written there too; without tmux that is an error."""
    wanted = os.environ.get("SHIGOTO_RECORDING")
    fallen = put(yard, "fall_once", steps=40)
    yard.start("--name", "anvil")
    words = [*SHIGOTO, "top", "shop.db", "--interval", "0.5"]
    recorder = Recorder(words, folder=yard.folder, environment=yard.environment)
    try:
        recorder.until(lambda seen: re.search(r"fall_once .* 5%  row 1", seen) is not None)
        yard.touch("fall")
        recorder.until(lambda seen: "Running: no job runs" in seen)
        if not wanted:
            yard.make_due(fallen)  # else people see how it waits for ten seconds
        put(yard, "monthly", pages=80 if wanted else 30)
        for name in ("smtp-1", "smtp-2"):
            put(yard, "fail", name=name)
        for number in range(300):
            put(yard, "thumbnail", number=number)
        recorder.until(lambda seen: "Last failures: 2" in seen)
        recorder.keys("Tab", "Tab", "r")
        recorder.until(lambda seen: "is ready again." in seen)
        recorder.until(lambda seen: len(recorder.all(AFTER_A_CRASH)) >= 3)
        recorder.keys("BTab", "g")
        if "fall_once" not in recorder.until(lambda seen: "> " in seen).partition("> ")[2].partition("\n")[0]:
            recorder.keys("Down")
        recorder.keys("Enter")
        recorder.until(lambda seen: "attempt 1 crashed" in seen)
        recorder.keys("Escape")
        yard.touch("up")
        recorder.until(lambda seen: "Running: no job runs" in seen)
        recorder.keys("q")
        recorder.until(lambda seen: "ended with 0" in seen)
    finally:
        recorder.close()

    recording = yard.folder / "top.cast"
    recorder.write(recording, "shigoto top")
    # Where it was made is nobody's business.
    text = recording.read_text().replace(f" on {socket.gethostname()})", " on smithy)")
    if wanted:
        Path(wanted).write_text(text)
    header, *events = [json.loads(line) for line in text.splitlines()]
    assert (header["version"], header["width"], header["height"]) == (2, 110, 30)
    times = [at for at, _, _ in events]
    assert times == sorted(times)
    assert {kind for _, kind, _ in events} == {"o"}
    assert len(recorder.all(r"monthly .* 1 +anvil .* (\d+%)")) >= 2
    assert len(recorder.all(AFTER_A_CRASH)) >= 2
    assert (fallen.status(), fallen.job().crashes) == (State.COMPLETED, 1)
    assert str(yard.folder) not in text
