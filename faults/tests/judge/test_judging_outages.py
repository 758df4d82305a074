"""What the experiments with servers, lines and forks judge by themselves: each of it is found when it is there."""

from pathlib import Path

import pytest

from faults.evidence.audit import Announced, Change
from faults.evidence.checker import Evidence
from faults.evidence.records import Record
from faults.experiment import Outcome
from faults.experiments import (
    e13_fork_after_connect,
    e18_silent_network,
    e19_ambiguous_commit,
    e21_deaf_listener,
)
from faults.tools import outages
from faults.tools.outages import Outage


def claimed(*moments: float) -> list[Change]:
    return [change("running", "in", at=at, number=number) for number, at in enumerate(moments, 1)]


def change(
    table: str, deed: str, *, at: float = 0.0, number: int = 1, job: str = "", token: int = 0, state: str = ""
) -> Change:
    return Change(
        sequence=number,
        at=at,
        number=number,
        job=job or f"job {number}",
        table=table,
        deed=deed,
        token=token,
        settled_token=0,
        state=state,
    )


def ran(job: str, began: float, ended: float | None, *, outcome: str = "done") -> list[Record]:
    begun = [Record(what="start", at=began, pid=7, job=job, token=1)]
    return begun + (
        [] if ended is None else [Record(what="end", at=ended, pid=7, job=job, token=1, outcome=outcome)]
    )


def test_an_outage_is_over_when_the_store_gives_out_jobs_again() -> None:
    away = Outage(how="kill", began=10.0, down=10.5, up=13.0)
    records = [*ran("a", 9.0, 10.2), *ran("b", 9.0, 9.9), *ran("c", 10.1, 11.0), *ran("d", 9.5, None)]
    evidence = Evidence(records=records, changes=claimed(9.0, 10.2, 14.5), offset=0.0)

    found = outages.resumption([away], evidence)

    assert (found.recovery, found.pick_up, found.in_flight, found.wrong) == ([4.5], [1.5], [2], [])


def test_an_outage_after_which_nothing_goes_on_or_too_late_or_that_had_nothing_to_hit_is_told_of() -> None:
    away = Outage(how="kill", began=10.0, down=10.5, up=13.0)
    late = Evidence(records=ran("a", 9.0, 11.0), changes=claimed(9.0, 18.1), offset=0.0)
    never = Evidence(records=ran("a", 9.0, 11.0), changes=claimed(9.0, 10.2), offset=0.0)
    idle = Evidence(records=ran("a", 9.0, 9.5), changes=claimed(9.0, 13.1), offset=0.0)

    assert outages.resumption([away], late).wrong == [
        "Work went on 5.1 s after the return (kill), and not within 5 s."
    ]
    assert outages.resumption([away], never).wrong == ["Nothing was given out after an outage (kill)."]
    assert outages.resumption([away], idle).wrong == ["Nobody was at work when an outage began."]


def test_what_callers_and_handlers_are_told_is_counted_by_its_name() -> None:
    records = [
        Record(what="err", at=1.0, pid=7, job="a", outcome="StoreUnavailable"),
        *ran("b", 1.0, 2.0, outcome="trouble"),
        *ran("c", 1.0, 2.0),
    ]

    assert outages.surfaced(Evidence(records=records)) == {
        "errors told to producers": {"StoreUnavailable": 1},
        "runs ended by": {"trouble": 1},
    }


def test_a_traceback_in_a_log_is_found_by_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    assert outages.tracebacks(log) == []

    log.write_text("fine\nTraceback (most recent call last):\n  File x\n    y\nValueError: no\nfine\n")
    assert outages.tracebacks(log) == ["ValueError: no"]


def test_e13_wants_the_parents_connections_to_be_the_same_and_nobody_to_complain() -> None:
    judge = e13_fork_after_connect.judge
    assert judge([4, 5], [4, 5, 6], 0, [], "") == []
    assert judge([4, 5], [5, 6], 0, [], "") == ["Of the parent's connections [4, 5] there are left [5]."]
    assert judge([4], [4], 0, [], "") == ["Of the parent's connections [4] there are left [4]."]
    assert judge([4, 5], [4, 5], 2, ["FATAL:  x"], "oh\nno\n") == [
        "The server said: FATAL:  x",
        "2 children failed.",
        "The web server said: no",
    ]


@pytest.mark.parametrize(
    ("line", "complaints"),
    [
        ("ERROR:  there is no lane for task a in queue b", 0),
        ("LOG:  could not receive data from client: Connection reset by peer", 0),
        ("FATAL:  invalid frontend message type 0", 1),
        ("LOG:  unexpected EOF on client connection with an open transaction", 1),
        ("LOG:  invalid length of startup packet", 1),
    ],
)
def test_e13_knows_a_complaint_of_the_server(line: str, complaints: int) -> None:
    assert len(e13_fork_after_connect.COMPLAINT.findall(f"2026 UTC [1] {line}\n")) == complaints


def silence(starts: list[float]) -> list[str]:
    act = e18_silent_network.Act(name="both ways", began=10.0, noticed=40.0, over=70.0, ended=80.0)
    outcome = Outcome(n=1)
    records = [Record(what="start", at=at, pid=7, job="a") for at in starts]
    e18_silent_network.judge(outcome, [act], records, 30.0)
    return outcome.wrong


def test_e18_wants_a_silence_that_is_felt_and_work_soon_after_it() -> None:
    assert silence([9.0, 10.1, 71.0, 72.0, 79.0]) == []
    assert silence([10.1, 75.5, 79.0]) == ["Work went on 5.5 s after the silence was over (both ways)."]
    assert silence([10.0 + at for at in range(70)]) == [
        "The silence was not felt: nothing began for 1.0 s only (both ways)."
    ]


def test_e19_tells_what_was_done_twice() -> None:
    changes = [
        change("ready", "in", number=1, job="a"),
        change("ready", "in", number=2, job="a"),
        change("ready", "in", number=3, job="b"),
        change("ready", "in", number=3, job="b", token=1),  # given back, and no birth
        change("done", "in", number=3, job="b", token=2, state="completed"),
        change("done", "in", number=3, job="b", token=2, state="completed"),
    ]
    records = [*ran("c", 1.0, 2.0), *ran("c", 1.5, 2.0), *ran("d", 1.0, 2.0)]

    found = e19_ambiguous_commit.duplicates(Evidence(records=records, changes=changes))

    assert found == {"enqueue": 1, "claim": 1, "settle": 1}


def test_e19_tells_of_enqueues_that_stay_unknown_and_of_fences() -> None:
    records = [Record(what="try", at=1.0, pid=7, job="a")]
    evidence = Evidence(records=records, workers={"w": Announced(7, 30.0, fenced=1)})

    assert set(e19_ambiguous_commit.judged(evidence, 1).wrong) >= {
        "0 jobs were acknowledged, and not 1.",
        "1 enqueues stayed unknown.",
        "A worker was fenced, and none was harmed.",
    }


def deafness(waits: list[float], name: str = "deaf") -> list[str]:
    records: list[Record] = []
    for number, wait in enumerate(waits):
        records.append(Record(what="ok", at=1.0 + number, pid=7, job=str(number)))
        records += ran(str(number), 1.0 + number + wait, None)
    outcome = Outcome(n=1)
    e21_deaf_listener.judge(outcome, [e21_deaf_listener.Phase(name, 0.0, 100.0)], records, slack=0.5)
    return outcome.wrong


def test_e21_wants_deafness_to_be_felt_and_bounded_by_the_poll_floor() -> None:
    assert deafness([0.4, 0.9, 1.4]) == []
    assert deafness([0.4, 0.9, 1.6]) == ["A job waited 1.6 s while deaf, and not 1.5 s at most."]
    assert deafness([0.01, 0.02, 0.9]) == ["Somebody heard the doorbell while deaf."]
    assert deafness([0.01, 0.02, 0.9], "well") == []
    assert deafness([]) == ["No job was asked for while deaf."]
