"""The figures of `shigoto bench`: how they are made of rounds, and how they look."""

import io
from datetime import UTC, datetime
from xml.etree import ElementTree

import pytest
from msgspec import structs

from shigoto.bench.figures import Figure, Memory, Rate, Waits
from shigoto.bench.picture import draw
from shigoto.bench.place import Facts
from shigoto.bench.report import Machine, Report, distribution, percentiles
from shigoto.bench.rounds import Step
from shigoto.bench.usage import forget_most, memory, most_memory, processor
from shigoto.cli.bench_table import Progress, lines_of

SVG = "{http://www.w3.org/2000/svg}"


def rates(*per_second: float, memory: Memory | None = None) -> list[Figure]:
    return [Rate(jobs=100, seconds=100 / each, cpu=0.002, memory=memory) for each in per_second]


def report(**figures: list[Figure]) -> Report:
    return Report(
        machine=Machine(
            shigoto="1.2.3", python="3.13.1", sqlite="3.50.0", uvloop=True, system="Linux x86_64", cores=1
        ),
        facts=Facts(engine="sqlite", settings={"synchronous": "full"}, store="new files in <&>", shared=True),
        at=datetime(2030, 1, 31, tzinfo=UTC),
        jobs=100,
        rounds=3,
        processes=1,
        figures=figures,
    )


@pytest.fixture
def whole() -> Report:
    held = Memory(most=40_000_000, gained=5_000)
    return report(
        bare=rates(1_000, 2_000, 3_000),
        enqueue=rates(900, 1_200, 1_000),
        drain=rates(50_000, 70_000, 60_000, memory=held),
        latency=[Waits((1.0, 2.0, 4.0)), Waits((3.0,))],
    )


def test_the_median_of_the_rounds_counts(whole: Report) -> None:
    assert whole.per_second("drain") == pytest.approx(60_000)
    assert whole.times_bare("enqueue") == 0.5
    assert whole.cpu_per_job("drain") == pytest.approx(20)
    assert whole.memory("drain") == (40_000_000, 50)
    assert whole.memory("enqueue") is None
    assert whole.ended_jobs == 604, "what is bare is no job"


def test_without_a_disk_there_is_nothing_to_compare_with() -> None:
    assert report(drain=rates(10)).times_bare("drain") is None


def test_a_percentile_is_a_wait_that_was_measured() -> None:
    waits = [float(number) for number in range(1, 101)]

    assert percentiles(waits) == {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    assert percentiles([7.0]) == {"p50": 7, "p90": 7, "p99": 7, "max": 7}


@pytest.mark.parametrize("waits", [[1.0, 2.0, 4.0, 64.0], [5.0], [0.0, 0.0], [-0.1, 3.0]])
def test_every_wait_has_its_place_in_the_distribution(waits: list[float]) -> None:
    bounds, counts = distribution(waits, 12)

    assert sum(counts) == len(waits)
    assert len(bounds) == len(counts) + 1
    assert bounds == sorted(bounds)
    assert bounds[-1] == pytest.approx(max(*waits, bounds[0] * 1.1))


def test_on_a_terminal_the_table_has_bars_and_fits(whole: Report) -> None:
    lines = lines_of(whole, 80)

    [drain] = [line for line in lines if line.startswith("drain")]
    [bare] = [line for line in lines if line.startswith("bare")]
    assert (drain.count("█"), bare.count("█")) == (20, 1)
    assert "30.00" in drain
    assert any(line.startswith("enqueue to start") and "█" in line for line in lines)
    assert all(len(line.replace("\x1b[36m", "").replace("\x1b[0m", "")) <= 80 for line in lines)


def test_a_reader_without_a_terminal_gets_every_column(whole: Report) -> None:
    lines = lines_of(whole, None)

    [drain] = [line for line in lines if line.startswith("drain")]
    assert drain.split()[3:] == ["60,000", "50,000", "70,000", "30.00", "20.0", "40.0", "50"]
    assert "1 core" in lines[0]
    assert "medians of 3 rounds, 604 jobs verified" in lines[1]


def test_only_what_was_measured_is_told() -> None:
    lines = lines_of(report(latency=[Waits((1.0,))]), None)

    assert not [line for line in lines if "jobs/s" in line or "CPU" in line]
    assert [line for line in lines if line.startswith("enqueue to start")]


def test_the_picture_is_one_file_by_itself(whole: Report) -> None:
    text = draw(whole)

    drawing = ElementTree.fromstring(text)
    words = [element.text or "" for element in drawing.iter(f"{SVG}text")]
    assert drawing.tag == f"{SVG}svg"
    assert "Shigoto 1.2.3" in words
    assert any("2030-01-31" in each and "Python 3.13.1" in each for each in words)
    assert "shigoto bench --jobs 100 --rounds 3" in words
    assert {"Jobs per second", "Latency in milliseconds", "60,000", "p50 2.00", "max 4.00"} <= set(words)
    assert "prefers-color-scheme: dark" in text
    assert "href" not in text
    assert "url(" not in text


def test_all_shapes_are_inside_of_the_picture(whole: Report) -> None:
    drawing = ElementTree.fromstring(draw(whole))

    height = float(drawing.attrib["height"])
    for bar in drawing.iter(f"{SVG}rect"):
        x, y = float(bar.attrib["x"]), float(bar.attrib["y"])
        assert x >= 0
        assert x + float(bar.attrib["width"]) <= 900
        assert y >= 0
        assert y + float(bar.attrib["height"]) <= height


@pytest.mark.parametrize("names", [["drain"], ["latency"], ["bare", "enqueue"]])
def test_a_picture_of_some_measures_is_smaller(whole: Report, names: list[str]) -> None:
    some = structs.replace(whole, figures={name: whole.figures[name] for name in names})

    heights = [float(ElementTree.fromstring(draw(each)).attrib["height"]) for each in (some, whole)]
    assert heights[0] < heights[1]


def test_progress_is_a_line_for_each_figure_or_nothing() -> None:
    told, quiet = io.StringIO(), io.StringIO()
    begun = Step(round=1, rounds=3, done=0, steps=18, measure="drain")
    [figure] = rates(1_234.5)
    ended = structs.replace(begun, done=1, figure=figure)

    for stream, is_quiet in ((told, False), (quiet, True)):
        with Progress(stream, quiet=is_quiet) as progress:
            progress.show(begun)
            progress.show(ended)
            progress.show(structs.replace(ended, measure="latency", figure=Waits((1.5,))))

    assert told.getvalue().splitlines() == [
        "round 1 of 3: drain, async functions: 1,234 jobs/s",
        "round 1 of 3: latency, idle worker: 1.50 ms",
    ]
    assert quiet.getvalue() == ""


def test_a_process_knows_what_it_has_used() -> None:
    forget_most()
    before, cpu = memory(), processor()

    held = bytearray(64_000_000)
    held[::4096] = b"x" * len(held[::4096])

    assert most_memory() >= before + 50_000_000
    assert processor() > cpu
