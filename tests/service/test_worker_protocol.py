"""Workers in any language: what they are promised, on a clock that a test moves."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Unpack
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from shigoto import Shigoto
from shigoto.context import MOST_LINES
from shigoto.engine.memory import MemoryEngine
from shigoto.model.job import Job, State
from shigoto.model.worker import Announcement, SweepOrder
from shigoto.options import CallOptions
from shigoto.testing.store import VirtualClock
from tests.journeys.yard import eventually
from tests.service.ground import Key, Served, claim_all, key, served
from tests.service.hands import Hand

DAY = 86_400_000
NOBODY = UUID(int=0)


class Ground:
    """A service on a store in memory, whose time a test moves."""

    def __init__(self, server: Served, app: Shigoto, clock: VirtualClock) -> None:
        self.server, self.app, self.clock = server, app, clock

    def submit(self, **options: Unpack[CallOptions]) -> UUID:
        """A job of the task that hands know."""
        return self.app.enqueue_by_name("work", {"n": 1}, allow_unknown=True, **options).id

    def job(self, id: UUID | str) -> Job:
        """The job as it stands."""
        [job] = self.app.engine.run(self.app.engine.get([UUID(str(id))]))
        assert job is not None
        return job

    def sweep(self, *fence: str) -> None:
        """Repair as the housekeeping does after its two looks."""
        engine = self.app.engine
        engine.run(engine.sweep(SweepOrder(fence=tuple(map(UUID, fence)))))
        engine.run(engine.promote(1_000))

    def later(self, seconds: float) -> None:
        """Time passes, and what is due is ready."""
        self.clock.advance(round(seconds * 1000))
        self.app.engine.run(self.app.engine.promote(1_000))


@pytest.fixture
def ground() -> Iterator[Ground]:
    clock = VirtualClock()
    app = Shigoto(engine=MemoryEngine(clock=clock))
    with served(app, housekeeping=False) as server:
        yield Ground(server, app, clock)


def test_a_job_is_taken_by_one_worker_and_settled_by_its_id(ground: Ground) -> None:
    """S1-2, S1-12, S1-16, S1-23."""
    first, second = ground.submit(), ground.submit()
    one, other = Hand(ground.server), Hand(ground.server)

    [taken] = one.claim()
    [also] = other.claim()
    assert (taken["id"], also["id"]) == (str(first), str(second))
    assert one.claim() == other.claim() == []
    assert ground.job(first).state is State.PROCESSING

    answer = one.settle(taken, "completed", result={"sum": 3})

    assert (answer.status, answer.json) == (200, {"verdict": "accepted", "state": "completed"})
    assert ground.job(first).result == '{"sum":3}'


def test_what_is_taken_is_all_there_is_to_know(ground: Ground) -> None:
    """S1-11: its content stays, too: it may have to run again."""
    id = ground.submit(tags=["a"], meta={"who": "me"}, tenant="t", key="k", timeout=5.0)
    [job] = Hand(ground.server).claim() or Hand(ground.server, isolates=True).claim()

    assert {name: job[name] for name in ("id", "task", "queue", "tenant", "key", "tags", "meta")} == {
        "id": str(id),
        "task": "work",
        "queue": "default",
        "tenant": "t",
        "key": "k",
        "tags": ["a"],
        "meta": {"who": "me"},
    }
    assert (job["payload"], job["checkpoint"], job["attempt"], job["timeout"]) == ({"n": 1}, None, 1, 5.0)
    assert ground.job(id).payload == '{"n":1}'


def test_six_runs_then_failed(ground: Ground) -> None:
    """S1-17, S1-18, S1-19, S1-20 (without the mail): the server counts, waits and gives up; A5."""
    id = ground.submit()
    hand = Hand(ground.server)

    states: list[str] = []
    for run in range(1, 7):
        [job] = hand.claim()
        assert (job["attempt"], job["failures"]) == (run, run - 1)
        states.append(hand.settle(job, "errored", error=f"no luck in run {run}").json["state"])
        ground.later(3_600)
        hand = Hand(ground.server)

    assert states == ["pending"] * 5 + ["failed"]
    assert hand.claim() == []
    assert (ground.job(id).error, ground.job(id).failures) == ("no luck in run 6", 6)


def test_the_delay_of_a_retry_is_the_policys_unless_the_worker_says_one(ground: Ground) -> None:
    """A5: an HTTP worker reports an error, the server applies the policy."""
    ground.submit()
    hand = Hand(ground.server)
    [job] = hand.claim()
    assert hand.settle(job, "errored", error="x", delay=100).json["state"] == "pending"

    ground.later(99)
    assert hand.claim() == []
    ground.later(1)
    [job] = Hand(ground.server).claim()
    assert job["failures"] == 1


def test_what_must_not_be_retried_is_failed_at_once(ground: Ground) -> None:
    id = ground.submit()
    hand = Hand(ground.server)
    [job] = hand.claim()

    assert hand.settle(job, "failed", error="never", traceback="line 1").json["state"] == "failed"
    assert ground.job(id).error == "never"


def test_other_ends(ground: Ground) -> None:
    snoozed, released, cancelled = (ground.submit() for _ in range(3))
    hand = Hand(ground.server)
    jobs = {job["id"]: job for job in hand.claim(limit=3)}

    assert hand.settle(jobs[str(snoozed)], "snoozed").code == "REQUEST.INVALID"
    assert hand.settle(jobs[str(snoozed)], "snoozed", delay=60).json["state"] == "pending"
    assert hand.settle(jobs[str(released)], "released").json["state"] == "pending"
    assert hand.settle(jobs[str(cancelled)], "cancelled").json["state"] == "cancelled"
    assert [job["id"] for job in hand.claim(limit=3)] == [str(released)]


def test_a_result_that_cannot_be_stored_fails_the_job(ground: Ground) -> None:
    """A12: its effect has happened, so it does not run again."""
    id = ground.submit()
    hand = Hand(ground.server)
    [job] = hand.claim()
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]

    assert hand.settle(job, "completed", result=deep).json["state"] == "failed"
    assert ground.job(id).failure_kind == "result_invalid"


def test_a_settlement_said_twice_is_one(ground: Ground) -> None:
    """S1-14: the answer to the first was lost."""
    ground.submit()
    hand = Hand(ground.server)
    [job] = hand.claim()
    hand.settle(job, "completed", result=1)

    again = hand.settle(job, "completed", result=1)

    assert (again.status, again.json) == (200, {"verdict": "repeated", "state": "completed"})


def test_a_token_that_no_lease_can_have_is_refused(ground: Ground) -> None:
    """PostgreSQL has no room for it."""
    ground.submit()
    hand = Hand(ground.server)
    [job] = hand.claim()

    for token, status in ((2**31 - 1, 409), (2**31, 422)):
        odd = job | {"token": token}
        assert hand.settle(odd, "completed").status == status
        assert hand.tell(odd, "progress", progress=0.5).status == status
        assert hand.tell(odd, "checkpoint", checkpoint=1).status == status
    assert hand.settle(job, "completed").status == 200


def test_a_lease_that_runs_out_gives_the_job_to_others_and_a_zombie_is_refused(ground: Ground) -> None:
    """S1-13, S1-14, S1-26: the worker died silently. It is no failure, and counts by itself."""
    id = ground.submit()
    zombie = Hand(ground.server)
    [job] = zombie.claim()

    ground.clock.advance(30_001)
    ground.sweep(zombie.id)
    assert (ground.job(id).state, ground.job(id).failures, ground.job(id).crashes) == (State.PENDING, 0, 1)
    assert zombie.settle(job, "completed", result="late").code == "JOB.LEASE_LOST"
    assert zombie.settle(job, "completed", result="late").status == 409
    assert zombie.tell(job, "progress", progress=0.5).status == 409
    assert zombie.tell(job, "checkpoint", checkpoint=1).status == 409
    assert zombie.beat(job).code == zombie.ask("POST", "/claim", {}).code == "WORKER.FENCED"
    assert zombie.ask("POST", "/claim", {}).status == 410

    [again] = Hand(ground.server, isolates=True).claim()  # a suspect: it runs alone
    assert (again["id"], again["alone"], again["token"] > job["token"]) == (str(id), True, True)
    assert again["payload"] == {"n": 1}


def test_crashes_have_a_limit_of_their_own(ground: Ground) -> None:
    """S1-26: how many deaths of its worker a job is forgiven is an option of the job."""
    id = ground.submit(max_crashes=2)
    while ground.job(id).state is State.PENDING and ground.job(id).crashes < 10:
        hand = Hand(ground.server, isolates=True)
        assert hand.claim()
        ground.clock.advance(30_001)
        ground.sweep(hand.id)
        ground.later(3_600)

    job = ground.job(id)
    # The first only made it a suspect: others might have been to blame.
    assert (job.state, job.failure_kind, job.failures, job.crashes) == (State.FAILED, "crash_loop", 0, 3)


def test_a_job_may_take_a_day(ground: Ground) -> None:
    """S1-4: as long as its worker beats, nobody takes it away."""
    id = ground.submit()
    hand = Hand(ground.server, lease=3_600)
    [job] = hand.claim()

    for _ in range(72):
        ground.clock.advance(DAY // 72)
        beat = hand.beat(job)
        assert (beat.status, beat.json) == (200, {"cancels": [], "lost": [], "released": 0})
        ground.sweep(hand.id)

    assert hand.settle(job, "completed").json["state"] == "completed"
    assert ground.job(id).attempt == 1


def test_a_claim_whose_answer_was_lost_comes_back_with_the_next_beat(ground: Ground) -> None:
    """S1-14, C3: the worker does not know that it has the job, and says so by not naming it."""
    id = ground.submit()
    hand = Hand(ground.server)
    hand.claim()  # nobody hears the answer

    assert hand.beat().json["released"] == 0  # it may still be on its way
    ground.clock.advance(10_001)
    assert hand.beat().json["released"] == 1
    assert [job["id"] for job in hand.claim()] == [str(id)]


def test_a_claim_whose_answer_was_lost_comes_back_with_the_next_claim(ground: Ground) -> None:
    """S1-14, C3: who has nothing to run never beats, so a claim says what is held, too."""
    lost = ground.submit()
    hand = Hand(ground.server)
    hand.claim()  # nobody hears the answer

    assert hand.claim(held=[]) == []  # it may still be on its way
    for _ in range(200):
        ground.clock.advance(5_000)
        ground.sweep()
        assert hand.claim() == []  # whoever does not say what it holds is believed to hold all
    assert ground.job(lost).state is State.PROCESSING

    [again] = hand.claim(held=[])
    assert again["id"] == str(lost)
    assert (ground.job(lost).crashes, ground.job(lost).failures) == (0, 0)

    ground.later(10.001)
    assert (
        hand.claim(held=[{"number": again["number"], "token": again["token"]}]) == []
    )  # it stays where it is
    assert hand.settle(again, "completed").status == 200


def test_as_many_as_may_be_held_can_be_named(ground: Ground) -> None:
    hand = Hand(ground.server)
    held = [{"number": 2**52 + n, "token": 2**31 - 1, "id": str(NOBODY)} for n in range(10_000)]

    assert hand.ask("POST", "/beat", {"held": held}).status == 200
    assert hand.ask("POST", "/claim", {"held": held}).status == 200


def test_a_beat_tells_what_to_stop(ground: Ground) -> None:
    wanted, taken = ground.submit(), ground.submit()
    hand = Hand(ground.server)
    jobs = {job["id"]: job for job in hand.claim(limit=2)}
    ground.app.engine.run(ground.app.engine.cancel([wanted]))
    ground.app.engine.run(ground.app.engine.cancel([taken], force=True))

    told = hand.beat(*jobs.values()).json

    assert [notice["id"] for notice in told["cancels"]] == [str(wanted)]
    assert [notice["id"] for notice in told["lost"]] == [str(taken)]
    assert hand.ask("POST", "/beat", {}).json["cancels"][0]["id"] == str(wanted)  # found by the server
    assert hand.settle(jobs[str(wanted)], "errored", error="stopped").json["state"] == "cancelled"
    assert hand.settle(jobs[str(taken)], "completed").status == 409


def test_progress_checkpoint_and_lines_are_kept(ground: Ground) -> None:
    id = ground.submit()
    hand = Hand(ground.server)
    [job] = hand.claim()

    assert hand.tell(job, "progress", progress=0.25, text="a quarter", log=[{"text": "one"}]).status == 204
    assert (
        hand.tell(job, "progress", log=[{"text": "two", "level": "warning"}, {"text": "th\0ree"}]).status
        == 204
    )
    assert hand.tell(job, "checkpoint", checkpoint={"row": 7}).status == 204
    assert hand.tell(job, "checkpoint", checkpoint="x" * 70_000).code in (
        "REQUEST.TOO_LARGE",
        "JOB.PAYLOAD_TOO_LARGE",
    )
    assert hand.tell(job, "progress", progress=2).status == 422

    stored = ground.job(id)
    lines = ground.app.engine.run(ground.app.engine.logs(id))
    assert (stored.progress, stored.progress_text) == (0.25, "a quarter")
    assert [(line.line, line.level, line.text) for line in lines] == [
        (1, "info", "one"),
        (2, "warning", "two"),
        (3, "info", "th\\x00ree"),
    ]
    hand.settle(job, "released")
    [again] = hand.claim()
    assert again["checkpoint"] == {"row": 7}


def test_lines_that_are_numbered_may_be_sent_twice_and_in_any_order(ground: Ground) -> None:
    """The answer to the first was lost; and the second was faster than the first."""
    id = ground.submit()
    hand = Hand(ground.server)
    [job] = hand.claim()
    one, two = [{"text": "one"}, {"text": "two"}], [{"text": "three", "level": "in\0fo"}]

    for log, line in ((two, 3), (one, 1), (one, 1), (two, 3)):
        assert hand.tell(job, "progress", log=log, line=line).status == 204
    assert hand.tell(job, "progress", log=[{"text": "four"}]).status == 204
    assert hand.tell(job, "progress", log=one, line=0).status == 422

    lines = ground.app.engine.run(ground.app.engine.logs(id))
    assert [(line.line, line.level, line.text) for line in lines] == [
        (1, "info", "one"),
        (2, "info", "two"),
        (3, "in\\x00fo", "three"),
        (4, "info", "four"),
    ]


@pytest.mark.parametrize("first", [None, 1, 501])
def test_of_many_lines_the_newest_are_kept(ground: Ground, first: int | None) -> None:
    id = ground.submit()
    hand = Hand(ground.server)
    [job] = hand.claim()
    for start in range(0, 1_200, 100):
        log = [{"text": str(number)} for number in range(start, start + 100)]
        number = None if first is None else first + start
        assert hand.tell(job, "progress", log=log, line=number).status == 204

    lines = ground.app.engine.run(ground.app.engine.logs(id))

    assert len(lines) == MOST_LINES
    assert [line.text for line in lines] == [str(number) for number in range(1_200 - MOST_LINES, 1_200)]


def test_many_are_settled_at_once_each_by_itself(ground: Ground) -> None:
    first, second = ground.submit(), ground.submit()
    hand = Hand(ground.server)
    jobs = {job["id"]: job for job in hand.claim(limit=2)}
    settlements = [
        {"id": str(first), "token": jobs[str(first)]["token"], "outcome": "completed", "result": 1},
        {"id": str(NOBODY), "token": 1, "outcome": "completed"},
        {"id": str(second), "token": 99, "outcome": "completed"},
    ]

    answer = hand.ask("POST", "/settle", {"settlements": settlements})

    assert (answer.status, answer.json["verdicts"]) == (
        200,
        [
            {"id": str(first), "verdict": "accepted", "state": "completed"},
            {"id": str(NOBODY), "verdict": "lost", "state": None},
            {"id": str(second), "verdict": "lost", "state": "processing"},
        ],
    )
    assert hand.ask("POST", "/settle", {"settlements": []}).status == 422


def test_whoever_leaves_gives_back(ground: Ground) -> None:
    id = ground.submit()
    hand = Hand(ground.server)
    hand.claim()

    assert hand.ask("DELETE", "").json == {"released": 1}
    assert hand.ask("DELETE", "").status in (200, 410)
    assert [job["id"] for job in Hand(ground.server).claim()] == [str(id)]


def test_a_claim_that_waits_is_answered_when_work_comes(ground: Ground) -> None:
    """S1-21: long poll; and a poll that finds nothing is answered at once, with nothing."""
    hand = Hand(ground.server)
    assert hand.claim() == []
    got: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: got.extend(hand.claim(wait=10)))
    waiting.start()
    eventually(lambda: ground.server.service.waiters._lines != {})  # it waits
    id = ground.submit()
    began = time.monotonic()
    waiting.join(10)

    assert [job["id"] for job in got] == [str(id)]
    assert time.monotonic() - began < 5


def test_who_hangs_up_is_noticed_also_with_a_request_behind(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is given a job who is not there; and to hang up is no error."""
    hand, other = Hand(ground.server), Hand(ground.server)
    waiters, parts = ground.server.service.waiters, urlsplit(ground.server.url)
    body = b'{"wait": 10}'
    head = f"POST /api/v1/workers/{hand.id}/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    behind = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection((parts.hostname, parts.port), 10) as wire:
        wire.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body + behind + behind)
        eventually(lambda: len(waiters._lines) == 1)
    eventually(lambda: not waiters._lines)

    id = ground.submit()

    assert [job["id"] for job in other.claim(wait=5)] == [str(id)]
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_claim_that_waits_in_vain_is_answered_with_nothing(ground: Ground) -> None:
    hand = Hand(ground.server)

    assert hand.claim(wait=0.3) == []


def test_a_suspect_is_kept_from_workers_that_do_not_isolate(ground: Ground) -> None:
    """A18."""
    ground.submit()
    hand = Hand(ground.server)
    hand.claim()
    ground.clock.advance(30_001)
    ground.sweep(hand.id)

    assert Hand(ground.server).claim() == []
    assert len(Hand(ground.server, isolates=True).claim()) == 1


def test_the_same_id_again_changes_what_a_worker_said(ground: Ground) -> None:
    hand = Hand(ground.server)
    other = ground.app.enqueue_by_name("other", {}, allow_unknown=True).id
    Hand(ground.server, id=hand.id, tasks=["other"])

    assert [job["id"] for job in hand.claim()] == [str(other)]


def test_a_fenced_id_is_not_registered_again(ground: Ground) -> None:
    """The id is burnt: it would be told 201, and never get work."""
    hand = Hand(ground.server)
    ground.clock.advance(30_001)
    ground.sweep(hand.id)

    said = {"name": "hand", "tasks": ["work"], "id": hand.id}
    answer = ground.server.ask("POST", "/workers", said)

    assert (answer.status, answer.code) == (410, "WORKER.FENCED")


def test_a_claim_is_of_what_was_registered(ground: Ground) -> None:
    """Who takes which jobs is known: else nobody could tell whether there is a worker for each."""
    ground.app.enqueue_by_name("other", {}, allow_unknown=True, queue="ops")
    mine = ground.submit(queue="mail")
    hand = Hand(ground.server, tasks=["work", "more"], queues=["mail", "bulk"])

    for said in ({"tasks": ["other"]}, {"tasks": ["work", "other"]}, {"queues": ["ops"]}):
        refused = hand.ask("POST", "/claim", said)
        assert (refused.status, refused.code) == (422, "REQUEST.INVALID")
        assert refused.json["field"] in said
    assert hand.claim(tasks=["more"]) == hand.claim(queues=["bulk"]) == []
    assert [job["id"] for job in hand.claim(tasks=["work"], queues=["mail"])] == [str(mine)]


def test_what_was_registered_anew_elsewhere_counts(ground: Ground) -> None:
    hand = Hand(ground.server)
    other = ground.app.enqueue_by_name("other", {}, allow_unknown=True).id
    engine = ground.app.engine
    [record] = engine.run(engine.workers())
    engine.run(
        engine.announce(
            Announcement(
                id=record.id, name="hand", tasks=("work", "other"), queues=None, slots=1, version="1"
            )
        )
    )

    assert [job["id"] for job in hand.claim(tasks=["other"])] == [str(other)]


@pytest.mark.parametrize(
    "said",
    [
        {"tasks": []},
        {"tasks": ["Not A Name"]},
        {"lease": 1},
        {"slots": 0},
        {"name": ""},
        {"name": "a\0b"},
        {"unknown": 1},
        {"queues": []},
    ],
)
def test_nonsense_is_refused(ground: Ground, said: dict[str, object]) -> None:
    answer = ground.server.ask("POST", "/workers", {"name": "x", "tasks": ["work"], **said})

    assert answer.status == 422, answer.json


class TestTokens:
    """S20: only the token that has registered a worker speaks for it, and a token's queues hold for its workers."""

    @pytest.fixture
    def keys(self) -> list[Key]:
        return [key("work"), key("work"), key("work", queues=("a",)), key("submit")]

    def test_a_token_is_enough_to_be_a_worker(self, keys: list[Key]) -> None:
        """S20: there is nothing else that a worker must show."""
        app = Shigoto("memory:")
        mine, *_, submit = keys
        with served(app, tokens=keys) as server:
            app.enqueue_by_name("work", {}, allow_unknown=True)
            hand = Hand(server, token=mine)
            assert set(hand.registered) == {"worker", "lease", "beat_every"}
            [job] = hand.claim()
            new = {"name": "x", "tasks": ["work"]}
            assert server.ask("POST", "/workers", new, token=submit).status == 403
            assert server.ask("POST", "/workers", new).status == 401
            assert server.ask("POST", f"/workers/{hand.id}/claim", {}, token=submit).status == 403
            assert server.ask("POST", f"/workers/{hand.id}/claim", {}).status == 401
            assert hand.settle(job, "completed").status == 200

    @pytest.mark.parametrize("local", [False, True])
    def test_nobody_speaks_for_a_worker_of_others(self, keys: list[Key], *, local: bool) -> None:
        """S20: everybody can see its id."""
        app = Shigoto("memory:")
        mine, others, *_ = keys
        with served(app, tokens=keys) as server:
            id = app.enqueue_by_name("work", {}, allow_unknown=True).id
            if local:
                worker, [lease] = claim_all(app, "work")
                token = lease.token
            else:
                hand = Hand(server, token=mine)
                worker, token = UUID(hand.id), hand.claim()[0]["token"]
            path, end = f"/workers/{worker}", {"token": token, "outcome": "failed", "error": "no"}
            for method, rest, said in (
                ("POST", "/claim", {}),
                ("POST", "/beat", {}),
                ("POST", f"/jobs/{id}/progress", {"token": token, "progress": 0.5}),
                ("POST", f"/jobs/{id}/checkpoint", {"token": token, "checkpoint": 1}),
                ("POST", f"/jobs/{id}/settle", end),
                ("POST", "/settle", {"settlements": [{"id": str(id), **end}]}),
                ("DELETE", "", None),
            ):
                answer = server.ask(method, path + rest, said, token=others)
                assert (answer.status, answer.code) == (403, "AUTH.FORBIDDEN"), rest
            mine_now = {"name": "mine", "tasks": ["other"], "id": str(worker)}
            assert server.ask("POST", "/workers", mine_now, token=others).status == 403

            [record] = app.engine.run(app.engine.workers())
            assert (record.name, record.processing) == ("by hand" if local else "hand", 1)

    def test_a_token_for_some_queues_gets_work_of_those_only(self, keys: list[Key]) -> None:
        app = Shigoto("memory:")
        mine, _, confined, _ = keys
        with served(app, tokens=keys) as server:
            hidden = app.enqueue_by_name("work", {}, allow_unknown=True, queue="b").id
            open_ = app.enqueue_by_name("work", {}, allow_unknown=True, queue="a").id
            hand = Hand(server, token=confined)
            assert [job["id"] for job in hand.claim(limit=10)] == [str(open_)]
            assert hand.ask("POST", "/claim", {"queues": ["b"]}).status == 403
            refused = server.ask(
                "POST",
                "/workers",
                {"name": "x", "tasks": ["work"], "queues": ["b"]},
                token=confined,
            )
            assert refused.status == 403

            # A worker of somebody else is none of its own.
            other = Hand(server, token=mine)
            [job] = other.claim(limit=10)
            assert job["id"] == str(hidden)
            answer = server.ask(
                "POST",
                f"/workers/{other.id}/jobs/{job['id']}/settle",
                {"token": job["token"], "outcome": "completed"},
                token=confined,
            )
            assert answer.status == 403
