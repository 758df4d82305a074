"""The comparison with other queues: what it measures, how it judges, and the page it writes. No peer is installed here,
and nothing is timed."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec import to_builtins

from bench.comparison import command, driver, embedding, environment, report
from bench.comparison.contest import Contest
from bench.comparison.entries import Entry, chosen
from bench.comparison.goals import Figure, Goal, best_of, judge
from bench.comparison.sqlite_plan import FULL, LOGGED, NORMAL
from devtools.environment import ROOT, Problem

SQLITE = command.contest_on("sqlite")
POSTGRES = command.contest_on("postgres")
SETTING = report.Setting(
    date="2026-11-15",
    machine="2 cores",
    command="python3 dev.py bench --peers sqlite",
    software="Python 3.13.0 with SQLite 3.50.0.",
    rounds=3,
    sizes={"history": 1_000_000, "future": 1_000_000, "unknown": 100_000},
    infos={FULL: {"version": "1", "promises": {"synchronous": "FULL"}}, "huey": {"error": "no wheel"}},
)


def ran(
    work: str, name: str, *values: float, key: str = "jobs_per_s", **more: object
) -> list[dict[str, Any]]:
    return [
        {"round": number, "work": work, "name": name, key: value, **more}
        for number, value in enumerate(values)
    ]


@pytest.mark.parametrize("contest", [SQLITE, POSTGRES], ids=lambda contest: contest.engine)
class TestContests:
    def test_every_peer_has_a_runner_in_a_file_of_its_own(self, contest: Contest) -> None:
        for peer in contest.peers:
            assert (ROOT / f"{peer.module.replace('.', '/')}.py").exists()

    def test_every_goal_has_its_figures_in_the_plan(self, contest: Contest) -> None:
        planned = {(entry.work, entry.name) for entry in contest.entries}

        for goal in contest.goals:
            for figure in (goal.figure, *goal.beside):
                assert figure[:2] in planned, goal.what

    def test_every_workload_has_a_title(self, contest: Contest) -> None:
        assert set(contest.words.titles) == set(contest.works)

    def test_every_peer_is_measured(self, contest: Contest) -> None:
        for peer in contest.peers:
            assert {entry.work for entry in contest.entries if entry.name == peer.name} == set(peer.jobs)

    def test_no_scale_leaves_nothing_to_measure(self, contest: Contest) -> None:
        assert all(entry.jobs >= 50 for entry in chosen(scale=0.0001, all_of=contest.entries))

    def test_a_store_that_has_grown_stands_beside_an_empty_one(self, contest: Contest) -> None:
        grown = [entry for entry in contest.entries if entry.store]

        assert {entry.store for entry in grown} == set(contest.prepared)
        for entry in grown:
            [empty] = [
                each
                for each in contest.entries
                if each.work == entry.work and each.name == entry.name.replace("grown", "empty")
            ]
            assert not empty.store
            assert (empty.command, empty.jobs) == (entry.command, entry.jobs)
            assert empty.env.items() <= entry.env.items()

    def test_every_workload_can_be_shown(self, contest: Contest) -> None:
        keys = {work: next(iter(columns)) for work, columns in contest.words.plain.items()}
        keys |= {"idle": "pick-up p50 ms"}
        more = {key: 1.0 for columns in contest.words.plain.values() for key in columns}
        runs = [
            {**more, **run}
            for work in contest.works
            for run in ran(work, "shigoto", 2, key=keys.get(work, "jobs_per_s"))
        ]
        setting = msgspec.structs.replace(SETTING, sizes=contest.sizes(1_000_000))

        text = report.page([*ran("machine", "fdatasync", 0.1, key="ms"), *runs], setting, contest)

        assert text.count("\n## ") == len(contest.works) + 2


class TestPlan:
    def test_workloads_names_and_a_scale_can_be_chosen(self) -> None:
        found = chosen(["drain"], ["shigoto", "litequeue"], 0.5, all_of=SQLITE.entries)

        assert [(entry.name, entry.jobs) for entry in found] == [
            (NORMAL, 50_000),
            (FULL, 50_000),
            (LOGGED, 15_000),
            ("litequeue", 5_000),
        ]

    def test_no_goal_is_about_the_drain_with_log_lines(self) -> None:
        judged = {figure[:2] for goal in SQLITE.goals for figure in (goal.figure, *goal.beside)}

        assert ("drain", FULL) in judged
        assert ("drain", LOGGED) not in judged

    def test_the_best_of_the_peers_with_a_bulk_call_is_beside_ours(self) -> None:
        [goal, _] = [goal for goal in SQLITE.goals if goal.what.startswith("bulk")]

        assert [figure.name for figure in goal.beside] == ["litequeue", "flexiq", "quebec"]

    def test_a_message_queue_is_shown_and_not_judged(self) -> None:
        judged = {figure.name for goal in POSTGRES.goals for figure in (goal.figure, *goal.beside)}

        assert "pgmq" in POSTGRES.names
        assert "pgmq" not in judged
        assert {"pg-boss", "graphile-worker", "pgqueuer", "awa", "flexiq"} <= judged

    def test_a_first_word_means_all_of_ours(self) -> None:
        found = chosen(["held"], ["shigoto"], all_of=POSTGRES.entries)

        assert [entry.name for entry in found] == ["shigoto, nothing held", "shigoto, held"]


class TestGoals:
    RUNS = (
        *ran("drain", NORMAL, 100, 90, 110),
        *ran("drain", "slow", 5, 5, 5),
        *ran("drain", "fast", 10, 9, 12),
        *ran("drain", "broken", 1000, 1000, 1000, error="jobs were lost"),
    )
    PEERS = tuple(Figure("drain", name) for name in ("slow", "fast", "absent"))
    BROKEN = (*PEERS, Figure("drain", "broken"))

    def test_a_ratio_is_that_of_medians_beside_the_best_that_was_measured(self) -> None:
        verdict = judge(Goal("", Figure("drain", NORMAL), self.PEERS, least=10), self.RUNS, 3)

        assert verdict is not None
        assert verdict.beside == "fast"
        assert verdict.value == 10
        assert verdict.lowest == pytest.approx(110 / 12)
        assert verdict.highest == 10
        assert verdict.rounds == 3
        assert verdict.met

    def test_a_run_that_went_wrong_never_counts(self) -> None:
        assert best_of(self.BROKEN, self.RUNS) == Figure("drain", "fast")
        assert judge(Goal("", Figure("drain", "broken"), least=1), self.RUNS, 3) is None

    def test_no_goal_is_reached_while_one_of_the_peers_fails_altogether(self) -> None:
        verdict = judge(Goal("", Figure("drain", NORMAL), self.BROKEN, least=1), self.RUNS, 3)

        assert verdict is not None
        assert verdict.failed == ("broken",)
        assert not verdict.met

    @pytest.mark.parametrize("name", [NORMAL, "fast"])
    def test_no_goal_is_reached_in_fewer_rounds_than_were_asked_for(self, name: str) -> None:
        runs = [
            {**run, "error": "it took too long"} if (run["name"], run["round"]) == (name, 1) else run
            for run in self.RUNS
        ]
        verdict = judge(Goal("", Figure("drain", NORMAL), self.PEERS, least=1), runs, 3)

        assert verdict is not None
        assert verdict.beside == "fast"
        assert verdict.rounds == 2
        assert not verdict.met

    def test_what_was_not_measured_is_not_judged(self) -> None:
        absent = (Figure("drain", "absent"),)

        assert judge(Goal("", Figure("bulk", NORMAL), self.PEERS, least=3), self.RUNS, 3) is None
        assert judge(Goal("", Figure("drain", NORMAL), absent, least=3), self.RUNS, 3) is None

    @pytest.mark.parametrize(("value", "met"), [(2.9, True), (3.0, True), (3.1, False)])
    def test_a_bound_from_above_needs_nobody_beside(self, value: float, met: bool) -> None:
        runs = ran("idle", FULL, value, key="p50")
        verdict = judge(Goal("", Figure("idle", FULL, "p50"), most=3), runs, 1)

        assert verdict is not None
        assert verdict.met is met

    def test_above_and_under_leave_out_the_bound_itself(self) -> None:
        needed = {goal.needed for goal in SQLITE.goals if goal.strict}
        goals = [*SQLITE.goals, *POSTGRES.goals]

        assert needed == {"> 1 ×", "< 3 ms", "< 20 ms", "< 1 %"}
        assert not any(goal.holds(goal.least or goal.most or 0) for goal in goals if goal.strict)
        assert all(goal.holds(goal.least or goal.most or 0) for goal in goals if not goal.strict)

    def test_the_best_is_the_lowest_where_less_is_better(self) -> None:
        figures = tuple(Figure("latency", name, "p50_ms") for name in ("slow", "fast"))
        runs = [
            *ran("latency", "ours", 2, key="p50_ms"),
            *ran("latency", "slow", 9, key="p50_ms"),
            *ran("latency", "fast", 4, key="p50_ms"),
        ]

        verdict = judge(Goal("", Figure("latency", "ours", "p50_ms"), figures, most=1), runs, 1)

        assert verdict is not None
        assert (verdict.beside, verdict.value, verdict.met) == ("fast", 0.5, True)

    def test_what_is_measured_once_need_not_succeed_in_every_round(self) -> None:
        goal = Goal("", Figure("flow", "ours"), least=1, rounds=1)

        verdict = judge(goal, ran("flow", "ours", 5), 3)

        assert verdict is not None
        assert verdict.met


class TestDoubts:
    DRAINED: ClassVar[dict[str, Any]] = {"n": 10, "hits": 10, "hits_expected": 10, "left": 0, "finished": 10}

    def test_a_complete_drain_is_believed(self) -> None:
        assert driver.doubt(self.DRAINED) is None
        assert driver.doubt({**self.DRAINED, "left": None, "finished": None}) is None
        assert driver.doubt({"jobs_per_s": 5}) is None

    @pytest.mark.parametrize(
        ("wrong", "word"),
        [
            ({"hits": 9}, "began 9 times"),
            ({"hits": 11}, "began 11 times"),
            ({"left": 1}, "left"),
            ({"finished": 9}, "9 of 10"),
        ],
    )
    def test_a_drain_that_lost_or_repeated_jobs_is_not(self, wrong: dict[str, int], word: str) -> None:
        assert word in (driver.doubt({**self.DRAINED, **wrong}) or "")

    def test_jobs_that_are_not_in_the_store_are_missed(self) -> None:
        assert driver.doubt({"n": 10, "enqueued": 12, "stored": 12}) is None
        assert driver.doubt({"n": 10, "enqueued": 12, "stored": None}) is None
        assert (
            driver.doubt({"n": 10, "enqueued": 12, "stored": 11})
            == "the store has 11 jobs, and 12 were enqueued"
        )
        assert (
            driver.doubt({"n": 10, "enqueued": 12, "stored": 0})
            == "the store has 0 jobs, and 12 were enqueued"
        )


class TestAnswers:
    def test_the_last_line_counts(self) -> None:
        assert driver.read_answer('noise\n{"runner": "x", "cmd": "drain", "n": 1}\n', "warning") == {"n": 1}

    @pytest.mark.parametrize(
        ("output", "errors", "reason"),
        [
            ("", "Traceback\nKeyError: 'x'\n", "KeyError: 'x'"),
            ("hello\n", "", "hello"),
            ("", "", "without a word"),
            ("[1]", "", "[1]"),
        ],
    )
    def test_anything_else_is_a_failure_with_a_reason(self, output: str, errors: str, reason: str) -> None:
        assert reason in driver.read_answer(output, errors)["error"]

    def test_settings_of_the_caller_do_not_reach_the_runners(self) -> None:
        given = {"PATH": "/bin", "SHIGOTO_URL": "x", "PYTHONPATH": "y", "BENCH_UVLOOP": "0", "SYNC": "OFF"}
        assert driver.clean(given.items()) == {"PATH": "/bin"}

    def test_a_peer_that_is_not_there_is_reported_each_round(self, tmp_path: Path) -> None:
        [entry] = chosen(["drain"], ["huey"], all_of=SQLITE.entries)
        kept: list[int] = []

        ground = FakeGround(tmp_path, {"huey": "no wheel"})
        runs = driver.rounds([entry], 2, ground, lambda runs: kept.append(len(runs)))

        assert [run["error"] for run in runs if run["work"] == "drain"] == ["not installed: no wheel"] * 2
        assert kept == [2, 4]

    def test_what_takes_long_runs_in_the_first_round_alone(self, tmp_path: Path) -> None:
        entry = Entry("flow", "slow", "nobody", "flow", 5, package="slow", once=True)

        runs = driver.rounds([entry], 3, FakeGround(tmp_path, {"slow": "no wheel"}), lambda runs: None)

        assert [run["round"] for run in runs if run["work"] == "flow"] == [0]

    def test_in_each_round_another_begins(self, tmp_path: Path) -> None:
        plan = [
            Entry(work, name, "nobody", work, 5, package="x")
            for work in ("enqueue", "drain")
            for name in "abc"
        ]

        runs = driver.rounds(plan, 4, FakeGround(tmp_path, {"x": "no wheel"}), lambda runs: None)

        for work in ("enqueue", "drain"):
            names = [run["name"] for run in runs if run["work"] == work]
            assert names == ["a", "b", "c", "b", "c", "a", "c", "a", "b", "a", "b", "c"]


class FakeGround:
    """Where nothing runs."""

    python = Path(sys.executable)
    software = ""
    env: ClassVar[dict[str, str]] = {}

    def __init__(self, folder: Path, missing: dict[str, str]) -> None:
        self.folder = folder
        self.missing = missing

    def settle(self) -> None: ...

    def words_for(self, store: str) -> list[str]:
        return [store]

    def prepare(self, store: str) -> tuple[list[str], dict[str, str]]:
        return [store], {}


class TestPage:
    def page(self, runs: list[dict[str, Any]]) -> str:
        return report.page([*ran("machine", "fdatasync", 0.1, 0.2, 0.3, key="ms"), *runs], SETTING, SQLITE)

    def test_a_drain_shows_its_costs_and_the_best_comes_first(self) -> None:
        costs: dict[str, Any] = {
            "commits_per_job": 0.01,
            "written_bytes_per_job": 300.0,
            "cpu_us_per_job": 11.0,
        }
        text = self.page(
            [
                *ran("drain", "litequeue", 7000, 6000, 8000, commits_per_job=2.0),
                *ran("drain", NORMAL, 80_000, 90_000, 70_000, **costs),
            ]
        )

        assert "| shigoto NORMAL | 80,000 | 1.00 | 70,000..90,000 | 0.010 | 300 | 11 |" in text
        assert text.index("| shigoto NORMAL | 80,000") < text.index("| litequeue | 7,000")
        assert "≥ 10 × | 11.43 × | 8.75..15.00 | litequeue | 3 of 3 rounds | yes |" in text

    def test_a_goal_says_in_how_many_rounds_and_who_failed(self) -> None:
        text = self.page(
            [
                *ran("drain", NORMAL, 80_000, 90_000),
                *ran("drain", "litequeue", 7000, 6000, 8000),
                *ran("drain", "huey", 0, error="no wheel"),
            ]
        )

        assert "| litequeue | 2 of 3 rounds | **no**: huey failed |" in text

    def test_who_could_not_be_asked_for_the_jobs_is_named(self) -> None:
        text = self.page(
            [
                *ran("bulk", FULL, 9, 9, 9, enqueued=10, stored=10),
                *ran("bulk", "quebec", 3, 3, 3, enqueued=10, stored=None),
            ]
        )

        assert "| shigoto FULL | 9 | 1.00 | 9..9 | all |" in text
        assert "| quebec | 3 | 0.33 | 3..3 | not asked |" in text

    def test_an_idle_worker_is_shown_by_the_rounds_that_went_well(self) -> None:
        failed = {"round": 0, "work": "idle", "name": FULL, "error": "no job began", "idle cpu %": 9.0}
        text = self.page([failed, *ran("idle", FULL, 2, 2, key="pick-up p50 ms")])

        assert "| pick-up p50 ms | 2.00 | 2.00..2.00 |" in text
        assert "| idle cpu %" not in text
        assert "| shigoto FULL | failed: no job began |" in self.page([failed])

    def test_whoever_failed_is_shown_with_the_reason(self) -> None:
        text = self.page(ran("drain", "huey", 0, error="not installed: no wheel", key="wall_s"))

        assert "| huey | failed: not installed: no wheel |" in text
        assert "- drain, huey, round 1: not installed: no wheel" in text
        assert "could not be asked: no wheel" in text

    def test_every_goal_has_a_line_with_the_sizes_of_the_stores(self) -> None:
        text = self.page([])

        assert len(re.findall("not measured", text)) == len(SQLITE.goals)
        assert "drain with 1,000,000 finished jobs beside an empty store" in text

    def test_a_flow_is_shown_over_time(self) -> None:
        samples = [{"jobs": number * 1000, "hot_mb": number / 2} for number in range(9)]
        runs = ran("flow", "shigoto", 8000, commits_per_job=1, samples=samples)
        setting = msgspec.structs.replace(SETTING, sizes=POSTGRES.sizes(1000))

        text = report.page([*ran("machine", "fdatasync", 0.1, key="ms"), *runs], setting, POSTGRES)

        assert "| jobs | hot_mb |\n| --- | --- |\n| 0 | 0 |\n| 4,000 | 2 |\n| 8,000 | 4 |" in text

    def test_a_page_finds_its_place_in_another(self, tmp_path: Path) -> None:
        path = tmp_path / "page.md"
        path.write_text("# All\n<!-- begin a -->old<!-- end a -->\n<!-- begin b -->b<!-- end b -->\n")

        assert embedding.placed("# New\n\n## Goals\n", path, "a") == (
            "# All\n<!-- begin a -->\n\n## New\n\n### Goals\n\n<!-- end a -->\n<!-- begin b -->b<!-- end b -->\n"
        )
        assert embedding.placed("# New\n", path, "c") == "# New\n"
        assert embedding.placed("# New\n", tmp_path / "absent", "a") == "# New\n"

    def test_the_documentation_has_a_place_for_each_engine(self) -> None:
        path = ROOT / "docs" / "comparison.md"

        for engine in command.ENGINES:
            assert embedding.placed("# New\n", path, engine).startswith("# Beside other queues\n")

    def test_no_place_of_this_machine_is_on_the_page(self) -> None:
        words = [
            "--peers",
            "sqlite",
            "--out",
            "/home/a/o.json",
            "--table=/b.md",
            "--rounds",
            "5",
            "--python",
            "/c",
        ]

        assert command.shown(words) == ["--peers", "sqlite", "--rounds", "5"]

    def test_what_is_kept_can_be_read_again(self) -> None:
        assert json.loads(json.dumps(to_builtins(SETTING)))["sizes"]["unknown"] == 100_000


class TestEnvironment:
    def python(self, minor: int, *, usable: bool = True) -> environment.Python:
        return environment.Python(f"/python3.{minor}", (3, minor, 0), usable, "3.50.0", True)

    def test_the_newest_python_is_taken(self) -> None:
        found = [self.python(11), self.python(13), self.python(12), self.python(14, usable=False)]

        assert environment.newest(found).version == (3, 13, 0)

    def test_an_old_python_is_not_enough(self) -> None:
        with pytest.raises(Problem, match="--python PATH"):
            environment.newest([self.python(10)])

    def test_this_python_answers_for_itself(self) -> None:
        answer = environment.asked(sys.executable)

        assert answer is not None
        assert answer.version == sys.version_info[:3]

    def test_what_is_no_python_does_not_answer(self, tmp_path: Path) -> None:
        shim = tmp_path / "python3.13"
        shim.write_text("#!/bin/sh\necho no such version >&2\nexit 127\n")
        shim.chmod(0o755)

        assert environment.asked(str(shim)) is None
        assert environment.asked(str(tmp_path / "absent")) is None
        with pytest.raises(Problem, match=r"is not a Python of version 3\.11"):
            environment.find_python(str(shim))

    @pytest.mark.parametrize(
        ("requirement", "name"),
        [("click>=8.1.7", "click"), ("msgspec", "msgspec"), ("a-b_c.d[x]; python", "a-b_c.d")],
    )
    def test_requirements_are_installed_by_name(self, requirement: str, name: str) -> None:
        assert environment.name_of(requirement) == name

    def test_the_folder_is_made_again_for_another_python_or_other_names(self) -> None:
        there = environment.Environment("3.13.0", "3.50.0", ["click", "huey"], {}, "2026-11-15")

        assert environment.is_fresh(there, self.python(13), ["click", "huey"])
        assert not environment.is_fresh(there, self.python(12), ["click", "huey"])
        assert not environment.is_fresh(there, self.python(13), ["click"])

    def test_the_reason_of_a_failed_installation_is_its_last_line(self) -> None:
        fail = [sys.executable, "-c", "import sys; sys.exit('first\\nno such release: ' + sys.argv[-1])"]

        assert environment.installed(fail, "huey") == "no such release: huey"
        assert environment.installed([sys.executable, "-c", "pass"], "huey") is None


class TestCommand:
    def test_help_tells_of_all_kinds(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "bench", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
        )

        words = ("speed", "footprint", "--peers sqlite", "--peers postgres", "latency")
        assert all(word in done.stdout for word in words)

    def test_quick_is_one_round_of_small_sizes_unless_something_else_is_said(self) -> None:
        quick = command.sized(command.parser().parse_args(["--peers", "postgres", "--quick"]))
        other = command.sized(
            command.parser().parse_args(["--peers", "postgres", "--quick", "--scale", "0.5"])
        )
        full = command.sized(command.parser().parse_args(["--peers", "sqlite"]))

        assert (quick.rounds, quick.scale, quick.growth) == (1, 0.3, 300_000)
        assert {"drain", "held"} < set(quick.work)
        assert not {"drain2", "flow"} & set(quick.work)
        assert (other.rounds, other.scale) == (1, 0.5)
        assert (full.rounds, full.scale, full.growth) == (3, 1.0, 1_000_000)

    @pytest.mark.parametrize(
        ("words", "reason"),
        [
            (["--peers", "sqlite", "--work", "drian"], "there is no workload 'drian'"),
            (["--peers", "sqlite", "--only", "nobody"], "nobody is called nobody; there are: bare insert"),
            (["--peers", "postgres", "--work", "threads"], "there is no workload 'threads'"),
        ],
    )
    def test_what_cannot_be_meant_is_refused_before_anything_is_installed(
        self, words: list[str], reason: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(environment, "prepare", lambda *_, **__: pytest.fail("installed"))

        with pytest.raises(SystemExit, match=reason):
            command.main(words)
