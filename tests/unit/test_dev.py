"""dev.py must work on machines we never see, so its decisions are pure and tested here."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest

import dev
from devtools import environment, locks

PARALLEL = ("-n", "auto", "--dist", "worksteal")
PYTHON = "CPython 3.11.7 x86_64"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.y]\nz = 1\n', encoding="utf-8")
    (tmp_path / "requirements").mkdir()
    for name in environment.SETS:
        (tmp_path / "requirements" / f"{name}.txt").write_text(f"{name}==1\n", encoding="utf-8")
    return tmp_path


def stamp_of(root: Path, *sets: str) -> dict[str, object]:
    return {"sets": list(sets), "fingerprint": environment.fingerprint_of(root, sets, PYTHON)}


class TestCommandLine:
    def test_without_a_command_it_lists_all_of_them(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert dev.main([]) == 0

        lines = capsys.readouterr().out.splitlines()[2:]
        assert [line.split()[0] for line in lines] == list(dev.COMMANDS)
        assert all(len(line.split()) > 3 for line in lines)

    def test_an_unknown_command_is_an_error_with_the_list(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert dev.main(["tset"]) == 1

        assert "no command 'tset'" in capsys.readouterr().err

    def test_a_problem_is_told_without_a_traceback(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert dev.main(["check", "--fxi"]) == 1

        assert capsys.readouterr().err == "dev.py: check takes --fix and nothing else, not '--fxi'.\n"

    def test_an_old_python_is_told_what_is_needed(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "version_info", (3, 8, 18))
            code = dev.main(["test"])

        assert code == 1
        assert "needs Python 3.11 or newer" in capsys.readouterr().err

    def test_dev_py_parses_on_an_old_python(self) -> None:
        ast.parse((dev.ROOT / "dev.py").read_text(encoding="utf-8"), feature_version=(3, 8))


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ([], [*PARALLEL, "--tier=quick"]),
        (["memory"], [*PARALLEL, "--tier=quick", "--engine=memory"]),
        (["--rest", "--postgres", "15,18"], [*PARALLEL, "--tier=rest", "--postgres", "15,18"]),
        (["postgres", "--all", "--record"], [*PARALLEL, "--tier=all", "--engine=postgres", "--record"]),
        (["--nightly", "-n", "2"], ["--tier=nightly", "-n", "2"]),
        (["--since", "main"], [*PARALLEL, "--tier=quick", "--since", "main"]),
        (["tests/unit", "--all"], [*PARALLEL, "--tier=all", "tests/unit"]),
        (["sqlite", "-k", "claim"], [*PARALLEL, "--engine=sqlite", "-k", "claim"]),
        (["-k", "memory"], [*PARALLEL, "-k", "memory"]),
        (["tests/unit", "-n", "2"], ["tests/unit", "-n", "2"]),
        (["-n0", "--pdb"], ["--tier=quick", "-n0", "--pdb"]),
        (["--numprocesses=3"], ["--tier=quick", "--numprocesses=3"]),
        (["memory", "-p", "no:xdist"], ["--tier=quick", "--engine=memory", "-p", "no:xdist"]),
        (["tests/unit/test_dev.py"], [*PARALLEL, "tests/unit/test_dev.py"]),
        (["--renew", "tests/unit/cli"], [*PARALLEL, "--renew", "tests/unit/cli"]),
    ],
)
def test_the_words_choose_the_engine_the_tier_and_the_processes(given: list[str], passed: list[str]) -> None:
    assert dev.pytest_arguments(given) == passed


def test_one_run_has_one_tier() -> None:
    with pytest.raises(environment.Problem, match="not --rest --all"):
        dev.pytest_arguments(["--rest", "--all"])


@pytest.mark.parametrize(("cores", "processes"), [(1, "3"), (2, "3"), (8, "9")])
def test_there_are_more_test_processes_than_cores(cores: int, processes: str) -> None:
    name = "PYTEST_XDIST_AUTO_NUM_WORKERS"

    assert dev.tests_environment({}, cores) == {name: processes}
    assert dev.tests_environment({name: "1"}, cores) == {name: "1"}


def test_what_the_programs_of_tests_have_compiled_is_kept() -> None:
    """Else thousands of them compile the same files."""
    given = {"HOME": "/", "PYTHONDONTWRITEBYTECODE": "1"}

    assert dev.tests_environment(given, 1).keys() - {"PYTEST_XDIST_AUTO_NUM_WORKERS"} == {"HOME"}


def test_fix_repairs_only_what_ruff_can_repair() -> None:
    plain, fixing = dev.checks(fix=False), dev.checks(fix=True)

    assert [name for name in plain if plain[name] != fixing[name]] == ["ruff check", "ruff format"]
    assert "--check" in plain["ruff format"]
    assert "--check" not in fixing["ruff format"]
    assert "--fix" in fixing["ruff check"]


class TestStamp:
    def test_a_finished_install_is_fresh(self, root: Path) -> None:
        assert environment.is_fresh(stamp_of(root, "dev"), "dev", root, PYTHON)

    @pytest.mark.parametrize("installed", ["run", "dev", "rest", "docs"])
    def test_every_set_is_enough_to_run(self, root: Path, installed: str) -> None:
        assert environment.is_fresh(stamp_of(root, installed), "run", root, PYTHON)

    @pytest.mark.parametrize(
        ("installed", "wanted"), [("run", "dev"), ("dev", "docs"), ("dev", "rest"), ("docs", "dev")]
    )
    def test_a_set_that_is_not_there_is_missed(self, root: Path, installed: str, wanted: str) -> None:
        assert not environment.is_fresh(stamp_of(root, installed), wanted, root, PYTHON)

    def test_an_install_that_did_not_finish_has_no_stamp_and_is_not_fresh(self, root: Path) -> None:
        assert environment.read_stamp(root / "absent.json") is None
        assert not environment.is_fresh(None, "run", root, PYTHON)

    @pytest.mark.parametrize("content", ["", "{", "[]", "null"])
    def test_a_broken_stamp_is_no_stamp(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "stamp.json"
        path.write_text(content, encoding="utf-8")

        assert environment.read_stamp(path) is None

    @pytest.mark.parametrize("strange", [{}, {"sets": "dev"}, {"sets": ["x"]}, {"fingerprint": "x"}])
    def test_a_strange_stamp_is_not_fresh(self, root: Path, strange: dict[str, object]) -> None:
        assert not environment.is_fresh(strange, "run", root, PYTHON)

    def test_another_python_needs_another_install(self, root: Path) -> None:
        assert not environment.is_fresh(stamp_of(root, "dev"), "dev", root, "CPython 3.13.0 x86_64")

    @pytest.mark.parametrize(
        ("path", "text"),
        [("requirements/dev.txt", "dev==2\n"), ("pyproject.toml", '[project]\nname = "x"\nversion = "2"\n')],
    )
    def test_a_changed_lock_or_package_needs_another_install(self, root: Path, path: str, text: str) -> None:
        stamp = stamp_of(root, "dev")

        (root / path).write_text(text, encoding="utf-8")

        assert not environment.is_fresh(stamp, "dev", root, PYTHON)

    @pytest.mark.parametrize(
        ("path", "text"),
        [
            ("requirements/docs.txt", "docs==2\n"),
            ("pyproject.toml", '[tool.y]\nz = 2\n[project]\nname = "x"\n'),
        ],
    )
    def test_other_sets_and_the_configuration_of_tools_do_not(self, root: Path, path: str, text: str) -> None:
        stamp = stamp_of(root, "dev")

        (root / path).write_text(text, encoding="utf-8")

        assert environment.is_fresh(stamp, "dev", root, PYTHON)

    def test_a_missing_lock_says_how_to_get_it_back(self, root: Path) -> None:
        (root / "requirements" / "dev.txt").unlink()

        with pytest.raises(environment.Problem, match=r"dev\.txt is missing.*dev\.py lock"):
            environment.fingerprint_of(root, ["dev"], PYTHON)

    def test_a_pyproject_that_does_not_parse_is_told_by_name(self, root: Path) -> None:
        (root / "pyproject.toml").write_text("[project", encoding="utf-8")

        with pytest.raises(environment.Problem, match=r"pyproject\.toml cannot be read"):
            environment.fingerprint_of(root, ["dev"], PYTHON)


@pytest.mark.parametrize(
    ("installed", "wanted", "sets"),
    [
        ([], "run", ["run"]),
        (["run"], "run", ["run"]),
        (["run"], "dev", ["dev"]),
        (["dev"], "run", ["dev"]),
        (["dev"], "docs", ["dev", "docs"]),
        (["dev"], "rest", ["rest"]),
        (["rest"], "dev", ["rest"]),
        (["dev", "docs"], "dev", ["dev", "docs"]),
        (["gone"], "dev", ["dev"]),
    ],
)
def test_a_new_install_keeps_what_was_there(installed: list[str], wanted: str, sets: list[str]) -> None:
    assert environment.sets_to_install({"sets": installed}, wanted) == sets


class TestPrepare:
    @pytest.fixture(autouse=True)
    def elsewhere(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(environment, "ROOT", root)
        monkeypatch.setattr(environment, "VENV", root / ".venv")
        monkeypatch.setattr(environment, "TOOLS", root / ".tools")
        monkeypatch.setattr(environment, "STAMP", root / ".venv" / "stamp.json")
        monkeypatch.setattr(environment, "PYTHON", root / ".venv" / "python")

    @pytest.fixture
    def installs(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        """Stands in for the download: what was asked to be installed."""
        asked: list[list[str]] = []

        def install(sets: list[str], *, keep: bool) -> None:
            asked.append([*sets, "kept"] if keep else sets)
            (root / ".venv").mkdir(exist_ok=True)
            (root / ".venv" / "python").touch()

        monkeypatch.setattr(environment, "install", install)
        return asked

    def test_the_second_time_nothing_is_installed(self, installs: list[list[str]]) -> None:
        environment.prepare("dev")
        environment.prepare("dev")
        environment.prepare("run")

        assert installs == [["dev"]]

    def test_a_further_set_is_installed_beside_the_first(self, installs: list[list[str]], root: Path) -> None:
        environment.prepare("dev")
        environment.prepare("rest")
        environment.prepare("dev")
        environment.prepare("docs")

        (root / "requirements" / "rest.txt").write_text("rest==2\n", encoding="utf-8")
        environment.prepare("dev")

        assert installs == [["dev"], ["rest", "kept"], ["docs", "rest", "kept"], ["docs", "rest"]]

    def test_a_venv_without_its_python_is_made_again(self, installs: list[list[str]], root: Path) -> None:
        environment.prepare("dev")

        (root / ".venv" / "python").unlink()
        environment.prepare("run")

        assert installs == [["dev"], ["dev"]]

    def test_an_install_that_fails_leaves_no_stamp(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def install(sets: list[str], *, keep: bool) -> None:
            (root / ".venv").mkdir()
            (root / ".venv" / "python").touch()
            raise environment.Problem("the line is dead")

        monkeypatch.setattr(environment, "install", install)

        with pytest.raises(environment.Problem, match="the line is dead"):
            environment.prepare("dev")

        assert not environment.STAMP.exists()

    def test_making_a_venv_begins_by_removing_the_old_one_and_its_stamp(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (root / ".venv").mkdir()
        environment.STAMP.write_text(json.dumps(stamp_of(root, "dev")), encoding="utf-8")
        monkeypatch.setattr(environment, "has", lambda module: False)
        monkeypatch.setenv("PATH", str(root))

        with pytest.raises(environment.Problem, match="no uv on PATH"):
            environment.make_venv()

        assert not (root / ".venv").exists()


class TestWays:
    @pytest.mark.parametrize(
        ("has_venv", "has_uv", "has_pip", "way"),
        [
            (True, True, True, "venv"),
            (True, False, False, "venv"),
            (False, True, True, "uv"),
            (False, True, False, "uv"),
            (False, False, True, "fetch uv"),
        ],
    )
    def test_the_plainest_way_that_can_work_is_taken(
        self, has_venv: bool, has_uv: bool, has_pip: bool, way: str
    ) -> None:
        assert environment.choose_way(has_venv, has_uv, has_pip) == way

    def test_with_nothing_to_install_with_it_says_what_to_install(self) -> None:
        with pytest.raises(environment.Problem, match="apt-get install python3-venv"):
            environment.choose_way(False, False, False)

    def test_a_shim_with_nothing_behind_it_is_no_uv(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(environment, "TOOLS", root / ".tools")
        shim = root / "uv"
        shim.write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
        shim.chmod(0o755)
        monkeypatch.setenv("PATH", f"{root}:/bin:/usr/bin")

        assert environment.find_uv() is None

        shim.write_text("#!/bin/sh\necho uv 1.0\n", encoding="utf-8")
        assert environment.find_uv() == shim

    def test_a_failing_command_names_itself_its_exit_code_and_the_remedy(self) -> None:
        with pytest.raises(environment.Problem, match=r"not sing: `sh -c exit 3` .* code 3\.\nDrink water"):
            environment.run(["sh", "-c", "exit 3"], "could not sing", "Drink water.")


class TestLocks:
    @pytest.mark.parametrize(
        "line",
        [
            "--index-url index.example",
            "--extra-index-url index.example",
            "-i index.example",
            "--find-links /wheels",
            "x @ file:///wheels/x.whl",
        ],
    )
    def test_a_line_that_names_an_index_is_noticed(self, line: str) -> None:
        assert locks.index_trace(f"click==8.1.7\n{line}\n") == line

    def test_pins_and_hashes_are_fine(self) -> None:
        assert locks.index_trace("click==8.1.7 ; python_version < '4' \\\n    --hash=sha256:ab\n") is None

    @pytest.mark.parametrize("name", [*environment.SETS, "uv"])
    def test_every_pin_has_a_hash_and_no_address(self, name: str) -> None:
        text = environment.lock_file(environment.ROOT, name).read_text(encoding="utf-8")

        assert text.startswith(locks.HEADER)
        assert locks.index_trace(text) is None
        entries = re.split(r"^(?=[a-z0-9])", text.removeprefix(locks.HEADER), flags=re.MULTILINE)[1:]
        assert entries
        hashed = re.compile(r"\S+==\S+ .*--hash=sha256:", re.DOTALL)
        assert [entry for entry in entries if not hashed.match(entry)] == []

    def test_the_sets_agree_with_each_other(self) -> None:
        pins = {name: pinned(name) for name in environment.SETS}

        assert pins["run"] <= pins["dev"]
        assert pins["run"] <= pins["docs"]
        assert pins["dev"] <= pins["rest"]
        in_rest = {pin.split("==")[0] for pin in pins["rest"]}
        assert {pin for pin in pins["docs"] if pin.split("==")[0] in in_rest} <= pins["rest"]

    def test_the_quick_tests_do_without_checkers_and_foreign_drivers(self) -> None:
        rare = {
            "asyncpg",
            "basedpyright",
            "django",
            "mypy",
            "psycopg2-binary",
            "ruff",
            "schemathesis",
            "sqlalchemy",
        }

        assert rare & {pin.split("==")[0] for pin in pinned("dev")} == set()
        assert rare <= {pin.split("==")[0] for pin in pinned("rest")}

    def test_the_build_backend_is_locked_in_every_set(self) -> None:
        for name in environment.SETS:
            assert any(pin.startswith("hatchling==") for pin in pinned(name))


def pinned(name: str) -> set[str]:
    text = environment.lock_file(environment.ROOT, name).read_text(encoding="utf-8")
    return set(re.findall(r"^[a-z0-9][^ ]*==[^ ]+", text, flags=re.MULTILINE))
