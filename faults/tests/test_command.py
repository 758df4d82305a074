"""`dev.py faults`: which experiments run, what is printed and written, and how it ends."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

import dev
from faults import report
from faults.__main__ import main
from faults.experiment import ZEROS, Experiment, Outcome, Setting
from faults.experiments import all_experiments

Capture = pytest.CaptureFixture[str]


class Fakes:
    """Experiments that do nothing but remember what they were given."""

    def __init__(self) -> None:
        self.settings: list[tuple[str, Setting]] = []
        self.known: dict[str, Experiment] = {}

    def add(self, id: str, outcome: Outcome | Exception, *, by_default: bool = True) -> None:
        def run(setting: Setting) -> Outcome:
            self.settings.append((id, setting))
            (setting.folder / "jobs.db").touch()
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        self.known[id] = Experiment(id=id, title=f"title of {id}", act=run, by_default=by_default)

    @property
    def ran(self) -> list[str]:
        return [id for id, _ in self.settings]


@pytest.fixture
def fakes() -> Fakes:
    fakes = Fakes()
    seen = {"kills": 9, "reruns": {"kill": 7}}
    fakes.add("E01", Outcome(n=50_000, measured=ZEROS, recovery=[0.5, 1.0, 4.0], figures=seen))
    fakes.add("E02", Outcome(n=150, wrong=["a child was left"], lost=2, figures={"reasons": {"lost": ["a"]}}))
    fakes.add("E03", Outcome(skipped="there is no strace"))
    fakes.add("E34", Outcome(n=1), by_default=False)
    return fakes


def test_all_that_are_meant_for_every_run_are_run(fakes: Fakes, capsys: Capture) -> None:
    assert main(["--seed", "5"], fakes.known) == 1

    assert fakes.ran == ["E01", "E02", "E03"]
    assert {setting.seed for _, setting in fakes.settings} == {5}
    assert all(setting.full and setting.engine == "sqlite" for _, setting in fakes.settings)
    lines = capsys.readouterr().out.splitlines()
    assert "3 experiments on sqlite, seed 5" in lines
    rows = {line.split()[0]: line for line in lines[lines.index("") :] if line[:1] == "E"}
    assert rows["E01"].split()[4:] == [
        "50", "000", "0", "0", "0", "0", "0", "1.00", "/", "4.00", "/", "4.00", "of", "3", "0", "5", "passed",
    ]  # fmt: skip


def test_one_is_run_by_its_name_and_in_its_short_form(fakes: Fakes) -> None:
    assert main(["--experiment", "e34, E01", "--short"], fakes.known) == 0

    assert fakes.ran == ["E34", "E01"]
    assert not any(setting.full for _, setting in fakes.settings)


@pytest.mark.parametrize("words", ["E99", "E01,E99", ""])
def test_an_unknown_name_is_an_error_with_the_list(fakes: Fakes, capsys: Capture, words: str) -> None:
    assert main(["--experiment", words], fakes.known) == 2

    told = capsys.readouterr().err
    assert "E99" in told or "no experiment named" in told
    assert "E01, E02, E03, E34" in told
    assert fakes.ran == []


def test_an_experiment_of_another_engine_is_refused(fakes: Fakes, capsys: Capture) -> None:
    fakes.known["E15"] = Experiment(id="E15", title="", act=lambda _: Outcome(), engines=("postgresql",))

    assert main(["--experiment", "E15"], fakes.known) == 2
    assert "E15 is not about the engine sqlite" in capsys.readouterr().err


def test_what_passed_is_cleared_away_and_what_failed_is_kept(fakes: Fakes, capsys: Capture) -> None:
    main([], fakes.known)

    folders = {id: setting.folder for id, setting in fakes.settings}
    assert {id: folder.exists() for id, folder in folders.items()} == {
        "E01": False,
        "E02": True,
        "E03": False,
    }
    told = capsys.readouterr().out
    assert f"what it left behind is in {folders['E02']}" in told
    assert "2 lost" in told
    assert "a child was left" in told
    assert "there is no strace" in told
    (folders["E02"] / "jobs.db").unlink()
    folders["E02"].rmdir()


def test_an_experiment_that_raises_has_failed_and_the_others_go_on(fakes: Fakes, tmp_path: Path) -> None:
    fakes.add("E00", ValueError("no such worker"))
    fakes.known = dict(sorted(fakes.known.items()))

    assert main(["--experiment", "E00,E01", "--out", str(tmp_path / "out.json")], fakes.known) == 1

    first, second = json.loads((tmp_path / "out.json").read_text())
    assert first["error"] == "ValueError: no such worker"
    assert second["outcome"]["n"] == 50_000
    kept = Path(first["folder"])
    (kept / "jobs.db").unlink()
    kept.rmdir()


def test_json_has_everything_and_grows_with_each_experiment(fakes: Fakes, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out.json"
    seen: list[int] = []

    def look(setting: Setting) -> Outcome:
        seen.append(len(json.loads(out.read_text())))
        return Outcome(n=3)

    fakes.known["E35"] = Experiment(id="E35", title="looks", act=look)
    main(["--experiment", "E01,E35", "--seed", "5", "--out", str(out)], fakes.known)

    assert seen == [1]
    first = json.loads(out.read_text())[0]
    assert (first["id"], first["seed"], first["full"], first["engine"]) == ("E01", 5, True, "sqlite")
    assert first["outcome"]["recovery"] == [0.5, 1.0, 4.0]
    assert first["command"] == "python3 dev.py faults --experiment E01,E35 --seed 5"
    assert set(first["setting"]) >= {"date", "commit", "shigoto", "python", "sqlite", "kernel", "cores"}


def test_results_of_other_runs_are_kept_if_they_are_asked_for(fakes: Fakes, tmp_path: Path) -> None:
    out, page = tmp_path / "out.json", tmp_path / "page.md"
    main(["--experiment", "E01", "--seed", "1", "--out", str(out)], fakes.known)
    main(
        ["--experiment", "E34", "--seed", "2", "--out", str(out), "--table", str(page), "--add"], fakes.known
    )

    assert [(result.id, result.seed) for result in report.load(out)] == [("E01", 1), ("E34", 2)]
    assert "| E01 |" in page.read_text()
    main(["--experiment", "E34", "--out", str(out)], fakes.known)
    assert [result.id for result in report.load(out)] == ["E34"]


def test_the_table_stands_between_the_markers_of_a_page(fakes: Fakes, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Faults\n\n{report.BEGIN}\nold\n{report.END}\n\nThe rest.\n")

    main(["--experiment", "E01,E03,E34", "--seed", "5", "--table", str(page)], fakes.known)

    text = page.read_text()
    assert text.startswith("# Faults\n")
    assert text.endswith("The rest.\n")
    assert "old" not in text
    row = next(line for line in text.splitlines() if line.startswith("| E01"))
    assert [cell.strip() for cell in row.split("|")][3:] == [
        "50 000", "0", "0", "0", "0", "0", "6e-05", "1.00 / 4.00 / 4.00 of 3", "0", "5", "passed", "",
    ]  # fmt: skip
    assert "`python3 dev.py faults --experiment E01,E03,E34 --seed 5`" in text
    assert "rule of three" in text
    assert "- **E01** kills 9, reruns (kill 7)" in text
    assert "- **E03** skipped: there is no strace" in text
    assert str(tmp_path) not in text


@pytest.mark.parametrize(
    "text", ["# Mine\n", f"# Mine\n{report.BEGIN}\n", f"{report.END}\n{report.BEGIN}\n", b"\xff"]
)
def test_a_page_without_a_place_for_it_is_left_alone(
    fakes: Fakes, tmp_path: Path, capsys: Capture, text: str | bytes
) -> None:
    page = tmp_path / "page.md"
    page.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = page.read_bytes()

    assert main(["--experiment", "E01", "--table", str(page)], fakes.known) == 2

    assert page.read_bytes() == before
    assert fakes.ran == []
    assert "the page" in capsys.readouterr().err


def test_a_new_page_can_be_renewed(fakes: Fakes, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    main(["--experiment", "E01", "--table", str(page)], fakes.known)
    main(["--experiment", "E34", "--table", str(page)], fakes.known)

    assert "| E01 |" not in page.read_text()
    assert "| E34 |" in page.read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--add"], "--add needs --out"),
        (["--out", "."], "cannot be written"),
        (["--out", "damaged.json", "--add"], "is no file of results"),
        (["--table", "."], "cannot be read"),
    ],
)
def test_what_cannot_be_written_is_told_before_anything_runs(
    fakes: Fakes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    words: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.json").write_text('[{"id": ')

    assert main(["--experiment", "E01", *words], fakes.known) == 2

    assert told in capsys.readouterr().err
    assert fakes.ran == []
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.json"]


def test_an_interrupt_keeps_what_was_found_and_tells_of_it(
    fakes: Fakes, tmp_path: Path, capsys: Capture
) -> None:
    def interrupt(setting: Setting) -> Outcome:
        raise KeyboardInterrupt

    fakes.known["E35"] = Experiment(id="E35", title="is interrupted", act=interrupt)
    out = tmp_path / "out.json"

    assert main(["--experiment", "E01,E35,E34", "--out", str(out)], fakes.known) == 130

    said = capsys.readouterr().out
    assert "of 3 experiments 1 were done" in said
    assert "E01" in said.splitlines()[-3]
    kept = Path(next(line.split()[-1] for line in said.splitlines() if "left behind" in line))
    kept.rmdir()
    assert [result.id for result in report.load(out)] == ["E01"]
    assert fakes.ran == ["E01"]


def test_an_experiment_cannot_end_the_others(fakes: Fakes) -> None:
    def leave(setting: Setting) -> Outcome:
        sys.exit(0)

    fakes.known["E35"] = Experiment(id="E35", title="leaves", act=leave)

    assert main(["--experiment", "E35,E01"], fakes.known) == 1
    assert fakes.ran == ["E01"]


def test_a_run_that_could_show_nothing_is_not_green(fakes: Fakes, capsys: Capture) -> None:
    assert main(["--experiment", "E03"], fakes.known) == 1
    assert "Nothing was shown." in capsys.readouterr().out


def test_the_table_that_is_written_is_no_change_of_the_code(
    fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(range(9))
    monkeypatch.setattr(report, "_commit", lambda: f"look {next(looks)}")

    main(["--experiment", "E01,E34", "--out", str(tmp_path / "out.json")], fakes.known)

    assert [result.setting["commit"] for result in report.load(tmp_path / "out.json")] == ["look 0"] * 2


def test_each_engine_has_a_table_of_its_own_on_one_page(fakes: Fakes, tmp_path: Path) -> None:
    """Both in one file of results, and what is run again on the one is kept of the other."""
    out, page = tmp_path / "out.json", tmp_path / "page.md"
    ours, theirs = report.markers("sqlite"), report.markers("postgres")
    page.write_text("\n".join(["# Faults", *ours, "## PostgreSQL", *theirs, "The rest."]))
    fakes.known["E15"] = Experiment(id="E15", title="", act=lambda _: Outcome(n=7), engines=("postgres",))
    fakes.known["E01"] = replace(fakes.known["E01"], engines=("sqlite", "postgres"))
    words = ["--out", str(out), "--table", str(page), "--add"]

    main(["--experiment", "E01", *words], fakes.known)
    main(["--experiment", "E01,E15", "--engine", "postgres", *words], fakes.known)

    assert [(result.engine, result.id) for result in report.load(out)] == [
        ("postgres", "E01"),
        ("postgres", "E15"),
        ("sqlite", "E01"),
    ]
    first, second = page.read_text().split("## PostgreSQL")
    assert ("| E01 |" in first, "| E15 |" in first, "with SQLite 3." in first) == (True, False, True)
    assert ("| E01 |" in second, "| E15 |" in second, "with PostgreSQL " in second) == (True, True, True)
    assert "`python3 dev.py faults --experiment E01,E15 --engine postgres`" in second
    assert second.endswith("The rest.")


def test_the_experiments_have_the_ids_of_their_files_and_say_what_they_do() -> None:
    known = all_experiments()

    assert list(known) == sorted(known)
    assert all(experiment.title and len(experiment.title) < 80 for experiment in known.values())


def test_dev_py_runs_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[list[str], str]] = []

    def become(command: Sequence[str], needs: str) -> None:
        ran.append((list(command), needs))

    monkeypatch.setattr(dev, "become", become)

    dev.COMMANDS["faults"](["--short"])

    assert ran == [(["python", "-m", "faults", "--short"], "rest")]


def test_the_help_lists_the_experiments() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "faults", "--help"], cwd=dev.ROOT, capture_output=True, text=True, check=True
    )

    assert "E01" in done.stdout
    assert "--experiment" in done.stdout
