"""`dev.py faults`: which experiments run, what is printed and written, and how it ends."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

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
        "50", "000", "0", "0", "0", "0", "0", "1.00", "/", "4.00", "/", "4.00", "0", "5", "passed",
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
        "50 000", "0", "0", "0", "0", "0", "6e-05", "1.00 / 4.00 / 4.00", "0", "5", "passed", "",
    ]  # fmt: skip
    assert "`python3 dev.py faults --experiment E01,E03,E34 --seed 5`" in text
    assert "rule of three" in text
    assert "- **E01** kills 9, reruns (kill 7)" in text
    assert "- **E03** skipped: there is no strace" in text
    assert str(tmp_path) not in text


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

    assert ran == [(["python", "-m", "faults", "--short"], "dev")]


def test_the_help_lists_the_experiments() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "faults", "--help"], cwd=dev.ROOT, capture_output=True, text=True, check=True
    )

    assert "E01" in done.stdout
    assert "--experiment" in done.stdout
