"""The record protocol: who may ask for which verb, and what a confined token gets."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from shigoto import Shigoto
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.engine.remote import RemoteEngine, protocol
from shigoto.engine.remote.client import failure
from shigoto.model.errors import (
    IdTaken,
    JobNotFound,
    KeyTaken,
    OptionInvalid,
    PayloadInvalid,
    PayloadTooLarge,
    QueueFull,
    ServerDeadline,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    WorkerFenced,
)
from shigoto.model.job import Counts, JobFilter, JobSpec, Lease, LogLine, QueueSettings, State
from shigoto.model.notice import DELIVER, NOTICE, QUEUE, RULES
from shigoto.model.schedule import Change, Firing, Schedule, TickEntry, TickOutcome
from shigoto.model.worker import (
    Announcement,
    Death,
    Ending,
    LogTail,
    Orders,
    Report,
    Settlement,
    SweepOrder,
    Verdict,
    Want,
)
from shigoto.server import records
from shigoto.testing.store import VirtualClock
from tests.service.ground import STORES, Key, Served, key, served, shop_on
from tests.service.hands import Hand

KEYS = {
    "submit": key("submit"),
    "work": key("work"),
    "other": key("work"),
    "read": key("read"),
    "admin": key("admin"),
    "confined": key("work", "submit", "read", "admin", queues=("a",)),
    "tenant": key("submit", "read", tenant="t"),
    "notices": key("work", "submit", "read", queues=("a", QUEUE)),
}


@pytest.fixture
def server() -> Iterator[Served]:
    with served(Shigoto("memory:"), tokens=list(KEYS.values()), housekeeping=False) as server:
        yield server


def engine(server: Served, name: str) -> RemoteEngine:
    """The engine of somebody with this token."""
    return RemoteEngine(server.url.replace("://", f"://:{KEYS[name].text}@"))


def spec(**fields: Any) -> JobSpec:
    return JobSpec(**{"id": uuid4(), "task": "work", "queue": "a", "payload": "{}", **fields})


def nothing() -> None:
    """What a task does that is never run."""


def announcement(**fields: Any) -> Announcement:
    said: dict[str, Any] = {
        "id": uuid4(),
        "name": "w",
        "tasks": ("work",),
        "queues": ("a",),
        "slots": 1,
        "version": "1",
    }
    return Announcement(**said | fields)


def ask(server: Served, verb: str, args: tuple[Any, ...], token: Key | None, **headers: str) -> Any:
    usual = {"Content-Type": protocol.MEDIA_TYPE, "Shigoto-Protocol": "1"}
    return server.ask(
        "POST", f"/engine/{verb}", body=protocol.encode(args), token=token, headers=usual | headers
    )


ARGS: dict[str, tuple[Any, ...]] = {
    "hello": (),
    "enqueue_many": ([],),
    "claim": (uuid4(), []),
    "beat": (uuid4(), None),
    "report": (uuid4(), []),
    "settle": (uuid4(), []),
    "leave": (uuid4(),),
    "bury": (uuid4(), []),
    "promote": (10,),
    "get": ([],),
    "workers": (),
    "stats": (),
    "oldest": (),
    "settings": (),
    "cancel": ([], False),
    "retry": ([],),
    "delete": ([], []),
    "configure": (QueueSettings(name="a"),),
}


@pytest.mark.parametrize("verb", ARGS)
def test_each_verb_wants_its_scope(server: Served, verb: str) -> None:
    """S19."""
    assert ask(server, verb, ARGS[verb], None).status == 401
    for name in ("submit", "work", "read", "admin"):
        answer = ask(server, verb, ARGS[verb], KEYS[name])
        scopes = protocol.VERBS[verb].scopes
        may = name in scopes or (name == "admin" and "read" in scopes)
        if not may:
            assert (answer.status, answer.code) == (403, "AUTH.FORBIDDEN"), name
        else:
            assert answer.status == 200, (name, answer.json)


def test_what_is_not_of_the_protocol_is_refused(server: Served) -> None:
    work = KEYS["work"]
    assert ask(server, "fetch_all", (), work).status == 404
    assert ask(server, "promote", (1,), work, **{"Shigoto-Protocol": "2"}).code == "REQUEST.INVALID"
    assert ask(server, "promote", ("x",), work).code == "REQUEST.INVALID"
    assert ask(server, "promote", (1,), work, **{"Content-Type": "application/json"}).status == 415
    assert server.ask("GET", "/engine/promote", token=work).status == 405


def test_a_worker_through_the_door(server: Served) -> None:
    remote, said = engine(server, "work"), announcement(queues=None)
    server.service.engine.run(server.service.engine.enqueue_many([spec()]))
    remote.run(remote.announce(said))
    [lease] = remote.run(remote.claim(said.id, [Want(tasks=("work",), queues=None, limit=5)]))
    ended = Settlement(
        number=lease.number, token=lease.token, queue=lease.queue, ending=Ending.COMPLETED, result="1"
    )

    assert remote.run(remote.settle(said.id, [ended])) == [Verdict.ACCEPTED]
    assert remote.run(remote.settle(said.id, [ended])) == [Verdict.REPEATED]
    assert remote.run(remote.leave(said.id)) == 0
    remote.close()


@pytest.mark.parametrize("name", ["work", "confined"])
@pytest.mark.parametrize("store", STORES)
def test_no_worker_says_whose_counts_change(store: str, name: str, request: pytest.FixtureRequest) -> None:
    """I17: counts are of the queue that a job is in, whatever is said of it."""
    with (
        shop_on(store, request) as app,
        served(app, tokens=list(KEYS.values()), housekeeping=False) as server,
    ):
        remote, said, local = engine(server, name), announcement(), app.engine
        local.run(local.enqueue_many([spec() for _ in Ending] + [spec(queue="b")]))
        remote.run(remote.announce(said))
        leases = remote.run(remote.claim(said.id, [Want(tasks=("work",), queues=("a",), limit=9)]))
        lies = [
            Settlement(number=lease.number, token=lease.token, queue=queue, ending=ending, result="null")
            for lease, ending, queue in zip(
                leases, Ending, ["b", "ghost", "", "a", "b", "b", "b"], strict=True
            )
        ]

        assert remote.run(remote.settle(said.id, lies)) == [Verdict.ACCEPTED] * len(lies)

        counts = local.run(local.stats())
        assert set(counts) == {"a", "b"}
        assert counts["b"] == Counts(pending=1)
        ended = counts["a"]
        assert (ended.pending + ended.completed + ended.failed + ended.cancelled, ended.completed) == (7, 1)
        remote.close()


def of_a_worker(remote: RemoteEngine, worker: UUID) -> list[Op[Any]]:
    """All that a worker may ask, but to be announced; what it holds is not said."""
    ended = Settlement(number=1, token=1, queue="a", ending=Ending.COMPLETED)
    return [
        remote.beat(worker, None),
        remote.claim(worker, [Want(tasks=("work",), queues=None, limit=5)]),
        remote.report(worker, [Report(number=1, token=1, progress=0.5)]),
        remote.settle(worker, [ended]),
        remote.report_dead(worker, []),
        remote.leave(worker),
    ]


@pytest.mark.parametrize("name", ["other", "confined"])
@pytest.mark.parametrize("local", [False, True])
def test_a_worker_of_another_token_is_none_of_ours(server: Served, name: str, local: bool) -> None:
    """S20: nor is one that is at the store itself, without any token."""
    said = announcement()
    own, other = engine(server, "work"), engine(server, name)
    at: Engine = server.service.engine if local else own
    at.run(at.announce(said))

    for op in (*of_a_worker(other, said.id), other.announce(announcement(id=said.id, name="mine"))):
        with pytest.raises(StoreRefused, match="another token"):
            other.run(op)

    [record] = server.service.engine.run(server.service.engine.workers())
    assert (record.name, record.owner) == ("w", None if local else KEYS["work"].token.id)
    own.close()
    other.close()


def test_nobody_says_himself_whose_he_is(server: Served) -> None:
    remote = engine(server, "work")
    remote.run(remote.announce(announcement(owner=KEYS["other"].token.id)))
    remote.close()

    [record] = server.service.engine.run(server.service.engine.workers())
    assert record.owner == KEYS["work"].token.id


@pytest.mark.parametrize("name", ["work", "confined"])
def test_a_fenced_worker_is_told_so(name: str) -> None:
    """E01: whatever it asks is answered as at the store itself, so that it ends and begins anew."""
    clock = VirtualClock()
    store = MemoryEngine(clock=clock)
    with served(Shigoto(engine=store), tokens=list(KEYS.values()), housekeeping=False) as server:
        remote, other, said = engine(server, name), engine(server, "other"), announcement()
        remote.run(remote.announce(said))
        clock.advance(said.lease + 1)
        store.run(store.sweep(SweepOrder(fence=(said.id,))))

        told = [remote.run(op) for op in of_a_worker(remote, said.id)]
        assert told == [Orders(fenced=True), [], [False], [Verdict.LOST], [], 0]

        remote.run(remote.announce(said))  # the id is burnt, whoever has said goodbye
        other.run(other.leave(said.id))
        other.run(other.announce(said))
        assert remote.run(remote.beat(said.id, None)).fenced
        assert store.run(store.workers()) == []
        remote.close()
        other.close()


def test_that_a_worker_is_fenced_is_no_trouble_of_the_store() -> None:
    """Nobody tries again what was answered so."""
    answer = failure(410, b'{"code": "WORKER.FENCED", "detail": "Register anew."}', "there")

    assert isinstance(answer, WorkerFenced)
    assert str(answer).endswith("Register anew.")


def test_a_confined_token_sees_what_a_worker_needs(server: Served) -> None:
    """Workers, counts and the time, as far as its queues go: without them a worker would never take suspects. Of the
    tasks of others it sees those that its own workers have, too."""
    remote, store = engine(server, "confined"), server.service.engine
    store.run(store.enqueue_many([spec(), spec(queue="b")]))
    for name, queues in {"all": None, "some": ("a", "b"), "hidden": ("b",)}.items():
        said = announcement(name=name, queues=queues, tasks=("work", "other"))
        store.run(store.announce(said))
    remote.run(remote.announce(announcement(name="own")))

    counts = remote.run(remote.stats())
    assert list(counts) == ["a"]
    assert remote.run(remote.oldest()).keys() == {"a"}
    assert {each.name: (each.queues, each.tasks) for each in remote.run(remote.workers())} == {
        "all": (None, ("work",)),
        "some": (("a",), ("work",)),
        "own": (("a",), ("work",)),
    }
    assert remote.run(remote.time()) > 0
    remote.close()


def test_what_is_not_known_by_tenant_is_not_for_a_token_with_one(server: Served) -> None:
    remote = engine(server, "tenant")
    ops: list[Op[Any]] = [remote.stats(), remote.oldest(), remote.workers()]
    for op in ops:
        with pytest.raises(StoreRefused, match="one tenant"):
            remote.run(op)
    assert remote.run(remote.time()) > 0
    remote.close()


def test_a_confined_token_works_for_its_queues_only(server: Served) -> None:
    remote, said = engine(server, "confined"), announcement(queues=None)
    store = server.service.engine
    [own, _] = store.run(store.enqueue_many([spec(), spec(queue="b")]))
    remote.run(remote.announce(said))  # for all, which are its own

    leases = remote.run(remote.claim(said.id, [Want(tasks=("work",), queues=None, limit=5)]))

    assert [lease.id for lease in leases] == [own.id]
    with pytest.raises(StoreRefused, match="other queues"):
        remote.run(remote.claim(said.id, [Want(tasks=("work",), queues=("b",), limit=5)]))
    with pytest.raises(StoreRefused, match="other queues"):
        remote.run(remote.enqueue_many([spec(), spec(queue="b")]))
    with pytest.raises(StoreRefused, match="without queues"):
        remote.run(remote.settings())
    remote.close()


def test_messages_to_people_are_not_for_submitters(server: Served) -> None:
    remote = engine(server, "submit")
    for task in (DELIVER, NOTICE, f"{RULES}0123456789ab"):
        with pytest.raises(StoreRefused, match="by workers alone"):
            remote.run(remote.enqueue_many([spec(), spec(task=task)]))
    remote.close()

    assert server.service.engine.run(server.service.engine.stats()) == {}


@pytest.mark.parametrize(("name", "seen"), [("notices", (f"{RULES}0123456789ab",)), ("confined", ())])
def test_who_works_off_notices_knows_who_else_has_rules(
    server: Served, name: str, seen: tuple[str, ...]
) -> None:
    """Else it could not hand them on, and another app would not hear of its failures."""
    remote, store = engine(server, name), server.service.engine
    theirs = announcement(tasks=("other", f"{RULES}0123456789ab"), queues=None)
    store.run(store.announce(theirs))

    [worker] = remote.run(remote.workers())
    remote.close()

    assert worker.tasks == seen


def test_a_token_of_one_tenant_submits_and_sees_its_own(server: Served) -> None:
    remote = engine(server, "tenant")
    store = server.service.engine
    [other] = store.run(store.enqueue_many([spec(tenant="u")]))
    [own] = remote.run(remote.enqueue_many([spec()]))

    found = remote.run(remote.get([own.id, other.id]))

    assert [None if job is None else job.tenant for job in found] == ["t", None]
    with pytest.raises(StoreRefused, match="another tenant"):
        remote.run(remote.enqueue_many([spec(tenant="u")]))
    with pytest.raises(IdTaken):
        remote.run(remote.enqueue_many([spec(id=other.id)]))
    assert remote.run(remote.enqueue_many([spec(id=own.id)]))[0].status == "existing"
    remote.close()


@pytest.mark.parametrize("mode", ["keep", "replace"])
def test_a_confined_token_meets_nobody_by_a_unique_key(server: Served, mode: str) -> None:
    """A1: a key holds across all queues."""
    remote, store = engine(server, "confined"), server.service.engine
    [other] = store.run(store.enqueue_many([spec(queue="b", key="k")]))

    with pytest.raises(KeyTaken):
        remote.run(remote.enqueue_many([spec(key="k", key_mode=mode)]))
    remote.close()

    [job] = store.run(store.get([other.id]))
    assert job is not None
    assert (job.queue, job.state) == ("b", State.PENDING)
    assert store.run(store.stats())["b"].pending == 1


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"payload": "[]"}, PayloadInvalid),
        ({"payload": "{"}, PayloadInvalid),
        ({"payload": '{"x":' * 70 + "1" + "}" * 70}, PayloadInvalid),
        ({"payload": '{"x":"%s"}' % ("x" * 1_100_000)}, PayloadTooLarge),
        ({"task": "No Name"}, OptionInvalid),
        ({"queue": ""}, OptionInvalid),
        ({"priority": 10**9}, OptionInvalid),
        ({"delay": -1}, OptionInvalid),
        ({"run_at": 2**60}, OptionInvalid),
        ({"key": "a\0"}, OptionInvalid),
        ({"key_mode": "replace"}, OptionInvalid),
        ({"tenant": "x" * 101}, OptionInvalid),
        ({"retry": "{}"}, OptionInvalid),
        ({"tags": '{"a": 1}'}, OptionInvalid),
        ({"meta": "1"}, PayloadInvalid),
        ({"max_failures": 0}, OptionInvalid),
    ],
)
def test_a_record_that_our_code_would_not_make_is_refused(
    server: Served, fields: dict[str, Any], error: type[Exception]
) -> None:
    remote = engine(server, "submit")
    with pytest.raises(error):
        remote.run(remote.enqueue_many([spec(), spec(**fields)]))
    remote.close()

    store = server.service.engine
    assert store.run(store.stats()) == {}


def begun(server: Served, remote: RemoteEngine) -> tuple[Announcement, Lease]:
    """A worker that has a job."""
    said, store = announcement(queues=None), server.service.engine
    store.run(store.enqueue_many([spec()]))
    remote.run(remote.announce(said))
    [lease] = remote.run(remote.claim(said.id, [Want(tasks=("work",), queues=None, limit=5)]))
    return said, lease


def logged(*lines: LogLine, first: int = 1) -> LogTail:
    return LogTail(first=first, lines=lines)


SAID_OF_A_RUN: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"progress": float("nan")}, OptionInvalid),
    ({"progress": 2.0}, OptionInvalid),
    ({"progress_text": "a\0"}, OptionInvalid),
    ({"progress_text": "x" * 5_000}, PayloadTooLarge),
    ({"log": logged(first=2**63)}, OptionInvalid),
    ({"log": logged(LogLine(1, -1, "info", "x"))}, OptionInvalid),
    ({"log": logged(LogLine(1, 0, "in\0fo", "x"))}, OptionInvalid),
    ({"log": logged(LogLine(1, 0, "info", "\0"))}, OptionInvalid),
    ({"log": logged(LogLine(1, 0, "info", "x" * 2_001))}, PayloadTooLarge),
    ({"log": logged(*[LogLine(n, 0, "info", "x" * 1_000) for n in range(200)])}, PayloadTooLarge),
    ({"log": logged(*[LogLine(n, 0, "info", "x") for n in range(1_001)])}, PayloadTooLarge),
]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        *SAID_OF_A_RUN,
        ({"checkpoint": "{"}, PayloadInvalid),
        ({"checkpoint": '"%s"' % ("x" * 200_000)}, PayloadTooLarge),
        ({"checkpoint": "[" * 70 + "]" * 70}, PayloadInvalid),
        ({"number": 2**63}, OptionInvalid),
    ],
)
def test_news_of_a_run_that_our_code_would_not_tell_are_refused(
    server: Served, fields: dict[str, Any], error: type[Exception]
) -> None:
    """A12: also by a worker that is not ours."""
    remote, store = engine(server, "work"), server.service.engine
    said, lease = begun(server, remote)
    told = Report(**{"number": lease.number, "token": lease.token, **fields})

    with pytest.raises(error):
        remote.run(remote.report(said.id, [told]))
    remote.close()

    [job] = store.run(store.get([lease.id]))
    assert job is not None
    assert (job.progress, job.progress_text) == (None, None)
    assert store.run(store.logs(lease.id)) == []


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        *SAID_OF_A_RUN,
        ({"result": "{"}, PayloadInvalid),
        ({"result": '"%s"' % ("x" * 1_100_000)}, PayloadTooLarge),
        ({"result": "[" * 70 + "]" * 70}, PayloadInvalid),
        ({"error": "\0"}, OptionInvalid),
        ({"error": "x" * 100_000}, PayloadTooLarge),
        ({"traceback": "x" * 100_000}, PayloadTooLarge),
        ({"delay": -1}, OptionInvalid),
        ({"token": 2**63}, OptionInvalid),
    ],
)
def test_an_end_of_a_run_that_our_code_would_not_tell_is_refused(
    server: Served, fields: dict[str, Any], error: type[Exception]
) -> None:
    """A12."""
    remote, store = engine(server, "work"), server.service.engine
    said, lease = begun(server, remote)
    own: dict[str, Any] = {"number": lease.number, "token": lease.token, "queue": lease.queue}
    ended = Settlement(**{**own, "ending": Ending.COMPLETED, **fields})

    with pytest.raises(error):
        remote.run(remote.settle(said.id, [ended]))
    remote.close()

    [job] = store.run(store.get([lease.id]))
    assert job is not None
    assert job.state is State.PROCESSING


@pytest.mark.parametrize("fields", [{"error": "a\0"}, {"traceback": "a\0"}, {"delay": -1}, {"number": 2**63}])
def test_a_death_that_our_code_would_not_tell_is_refused(server: Served, fields: dict[str, Any]) -> None:
    remote = engine(server, "work")
    said, lease = begun(server, remote)

    with pytest.raises(OptionInvalid):
        remote.run(remote.report_dead(said.id, [Death(**{"number": lease.number, **fields})]))
    remote.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "a\0"},
        {"name": ""},
        {"name": "x" * 1_001},
        {"host": "a\0"},
        {"version": "a\0"},
        {"tasks": ("No Name",)},
        {"queues": ("No Name",)},
        {"slots": -1},
        {"lease": 0},
        {"lease": 2**60},
        {"pid": -1},
    ],
)
def test_a_worker_that_ours_would_not_be_is_refused(server: Served, fields: dict[str, Any]) -> None:
    remote, store = engine(server, "work"), server.service.engine

    with pytest.raises(OptionInvalid):
        remote.run(remote.announce(announcement(**fields)))
    remote.close()

    assert store.run(store.workers()) == []


def test_what_operators_do_is_noted(server: Served) -> None:
    """S0-66."""
    remote, store = engine(server, "admin"), server.service.engine
    [job] = store.run(store.enqueue_many([spec()]))
    remote.run(remote.cancel([job.id]))
    remote.run(remote.retry([job.id]))
    with pytest.raises(JobNotFound):
        remote.run(remote.retry([UUID(int=1)]))
    remote.run(remote.configure(QueueSettings(name="a", paused=True)))
    app = Shigoto(engine=remote)
    work = app.task(name="work")(nothing)
    app.schedules.add("nightly", work.call(), cron="0 3 * * *")
    app.schedules.pause("nightly")
    remote.close()

    entries = store.run(store.registry.noted())
    actor = f"token:{KEYS['admin'].token.id} (test)"
    assert [(entry.actor, entry.action, entry.target) for entry in entries] == [
        (actor, "schedule.pause", "nightly"),
        (actor, "schedule.add", "nightly"),
        (actor, "queue.pause", "a"),
        (actor, "job.retry", str(job.id)),
        (actor, "job.cancel", str(job.id)),
    ]


def test_a_full_queue_takes_no_more(server: Served) -> None:
    """S4-13."""
    remote, store = engine(server, "submit"), server.service.engine
    store.run(store.configure(QueueSettings(name="a", max_pending=1)))
    remote.run(remote.enqueue_many([spec()]))

    with pytest.raises(QueueFull, match="max_pending"):
        remote.run(remote.enqueue_many([spec()]))
    remote.close()


TOO_MUCH: dict[str, tuple[Any, ...]] = {
    "find": (JobFilter(limit=1_001),),
    "get": ([UUID(int=1)] * 1_001,),
    "promote": (10_001,),
    "history": ("nightly", None, 10_001),
    "enqueue_many": ([spec()] * 10_001,),
    "claim": (UUID(int=1), [Want(tasks=("work",), queues=None, limit=1)] * 10_001),
    "beat": (UUID(int=1), [(1, 1)] * 100_001),
    "report": (UUID(int=1), [Report(number=1, token=1)] * 10_001),
    "cancel": ([UUID(int=1)] * 10_001, False),
    "delete": ([1] * 10_001, []),
    "due": ([], 10_001),
    "sweep": (SweepOrder(batch=10_001),),
}


@pytest.mark.parametrize("verb", TOO_MUCH)
def test_nobody_asks_for_more_than_an_answer_should_hold(server: Served, verb: str) -> None:
    """I18, S08."""
    scopes = protocol.VERBS[verb].scopes
    token, said = KEYS[scopes[0]], announcement(id=UUID(int=1))
    ask(server, "announce", (said,), token)

    answer = ask(server, verb, TOO_MUCH[verb], token)

    assert (answer.status, answer.code) == (422, "REQUEST.INVALID"), answer.raw
    assert "at most" in answer.json["detail"]


def run_of(number: int = 1, token: int = 1) -> dict[str, Any]:
    return {"number": number, "token": token}


def change_of(spec: JobSpec | None = None, **fields: Any) -> Change:
    """A change of a schedule that is new."""
    said: dict[str, Any] = {"id": uuid4(), "name": "s", "definition": "{}", "decided_to": 1, "created_at": 1}
    entry = TickEntry(at=1, outcome=TickOutcome.FIRED, decided_at=1)
    firings = () if spec is None else (Firing(entry=entry, spec=spec),)
    return Change(schedule=Schedule(**said | fields), seen=0, firings=firings)


# What is said with a number, by verb; `WORKER` is a worker of the one who asks.
WORKER = UUID(int=7)
NUMBERED: list[tuple[str, Callable[[int], tuple[Any, ...]]]] = [
    ("enqueue_many", lambda n: ([spec(max_failures=n)],)),
    ("enqueue_many", lambda n: ([spec(delay=n)],)),
    ("claim", lambda n: (WORKER, [Want(tasks=("work",), queues=None, limit=n)])),
    ("beat", lambda n: (WORKER, [(n, 1)])),
    ("beat", lambda n: (WORKER, [(1, n)])),
    ("report", lambda n: (WORKER, [Report(**run_of(number=n))])),
    ("report", lambda n: (WORKER, [Report(**run_of(token=n))])),
    ("report", lambda n: (WORKER, [Report(**run_of(), log=LogTail(first=n, lines=()))])),
    ("report", lambda n: (WORKER, [Report(**run_of(), log=logged(LogLine(n, 0, "info", "x")))])),
    ("report", lambda n: (WORKER, [Report(**run_of(), log=logged(LogLine(1, n, "info", "x")))])),
    ("settle", lambda n: (WORKER, [Settlement(**run_of(number=n), queue="a", ending=Ending.COMPLETED)])),
    ("settle", lambda n: (WORKER, [Settlement(**run_of(token=n), queue="a", ending=Ending.COMPLETED)])),
    ("settle", lambda n: (WORKER, [Settlement(**run_of(number=n), queue="a", ending=Ending.FAILED)])),
    ("settle", lambda n: (WORKER, [Settlement(**run_of(), queue="a", ending=Ending.SNOOZED, delay=n)])),
    ("announce", lambda n: (announcement(slots=n),)),
    ("announce", lambda n: (announcement(lease=n),)),
    ("announce", lambda n: (announcement(pid=n),)),
    ("bury", lambda n: (WORKER, [Death(number=n)])),
    ("bury", lambda n: (WORKER, [Death(number=1, delay=n)])),
    ("promote", lambda n: (n,)),
    ("find", lambda n: (JobFilter(before=n),)),
    ("find", lambda n: (JobFilter(since=n),)),
    ("count", lambda n: (JobFilter(since=n),)),
    ("count", lambda n: (JobFilter(limit=n),)),
    ("deletable", lambda n: (JobFilter(), n)),
    ("deletable", lambda n: (JobFilter(limit=n), 0)),
    ("delete", lambda n: ([n], ["completed"])),
    ("history", lambda n: ("s", n, 5)),
    ("history", lambda n: ("s", None, n)),
    ("configure", lambda n: (QueueSettings(name="a", max_pending=n),)),
    ("configure", lambda n: (QueueSettings(name="a", keep_failed_for=n),)),
    ("due", lambda n: ([], n)),
    ("tick", lambda n: ([change_of(look_at=n)],)),
    ("tick", lambda n: ([change_of(counts={"fired": n})],)),
    ("tick", lambda n: ([change_of(errors=n)],)),
    ("tick", lambda n: ([change_of(created_at=n)],)),
    ("tick", lambda n: ([change_of(spec(max_crashes=n))],)),
    ("sweep", lambda n: (SweepOrder(batch=n),)),
    ("sweep", lambda n: (SweepOrder(keep_failed_for=n),)),
    ("sweep", lambda n: (SweepOrder(unknown_after=n),)),
]
# Where there are simply no such jobs, leases and instants, which is no mistake; and a page of fewer than none is empty.
TOLERANT = {"beat", "report", "settle", "bury", "find", "count", "deletable", "delete", "history"}


@pytest.mark.parametrize("store", STORES)
def test_numbers_that_no_store_has_are_the_callers_mistake(
    store: str, request: pytest.FixtureRequest
) -> None:
    """E48: 422, at every verb, and never a fault of ours."""
    scopes = key("submit", "work", "read", "admin")
    with shop_on(store, request) as app, served(app, tokens=[scopes], housekeeping=False) as server:
        assert ask(server, "announce", (announcement(id=WORKER),), scopes).status == 200
        for verb, args in NUMBERED:
            for number in (-(2**63), -1, 2**62, 2**63 - 1, 2**63, 2**64 - 1):
                answer = ask(server, verb, args(number), scopes)
                tolerant = verb in TOLERANT or (verb == "tick" and number == -1)
                allowed = (200, 422) if tolerant and number < 2**63 else (422,)
                assert answer.status in allowed, (verb, args(number), answer.raw)
        assert ask(server, "announce", (announcement(id=WORKER),), scopes).status == 200


# What is said with a text, by verb.
WORDED: list[tuple[str, Callable[[str], tuple[Any, ...]]]] = [
    ("tick", lambda text: ([change_of(definition=text)],)),
    ("tick", lambda text: ([change_of(origin=text)],)),
    ("tick", lambda text: ([change_of(error=text)],)),
    ("tick", lambda text: ([change_of(counts={text: 1})],)),
    ("schedules", lambda text: ([text],)),
    ("remove_schedules", lambda text: ([text],)),
    ("declare", lambda text: ([text],)),
    ("due", lambda text: ([text], 5)),
    ("history", lambda text: (text, None, 5)),
    ("find", lambda text: (JobFilter(queue=text),)),
    ("find", lambda text: (JobFilter(task=text),)),
    ("find", lambda text: (JobFilter(tenant=text),)),
    ("find", lambda text: (JobFilter(key=text),)),
    ("find", lambda text: (JobFilter(tag=text),)),
    ("find", lambda text: (JobFilter(worker=text),)),
    ("find", lambda text: (JobFilter(error=text),)),
    ("count", lambda text: (JobFilter(queue=text, error=text),)),
    ("claim", lambda text: (WORKER, [Want(tasks=(text,), queues=(text,), limit=1)])),
    ("announce", lambda text: (announcement(name=text),)),
    ("announce", lambda text: (announcement(host=text),)),
    ("announce", lambda text: (announcement(version=text),)),
    ("announce", lambda text: (announcement(tasks=(text,)),)),
    ("settle", lambda text: (WORKER, [Settlement(**run_of(), queue=text, ending=Ending.FAILED, error=text)])),
]


@pytest.mark.parametrize("store", STORES)
def test_texts_that_no_store_can_hold_are_the_callers_mistake(
    store: str, request: pytest.FixtureRequest
) -> None:
    """E48: never a fault of ours."""
    scopes = key("submit", "work", "read", "admin")
    with shop_on(store, request) as app, served(app, tokens=[scopes], housekeeping=False) as server:
        assert ask(server, "announce", (announcement(id=WORKER),), scopes).status == 200
        for verb, args in WORDED:
            for text in ("a\0b", "\0", "\uffff", "x" * 100_000):
                answer = ask(server, verb, args(text), scopes)
                assert answer.status in (200, 413, 422), (verb, args(text[:9]), answer.raw)


@pytest.mark.parametrize(
    ("verb", "args"),
    [
        ("configure", (QueueSettings(name="BAD NAME"),)),
        ("configure", (QueueSettings(name="a\0"),)),
        ("configure", (QueueSettings(name="a", max_pending=0),)),
        ("tick", ([change_of(name="a\0")],)),
        ("tick", ([change_of(spec(task="No Name"))],)),
        ("tick", ([change_of(spec(payload="{"))],)),
    ],
)
def test_what_an_operator_stores_is_looked_at_too(server: Served, verb: str, args: tuple[Any, ...]) -> None:
    """A12: others read it."""
    assert ask(server, verb, args, KEYS["admin"]).status == 422


def test_less_than_nothing_is_not_everything(server: Served) -> None:
    remote, store = engine(server, "read"), server.service.engine
    store.run(store.enqueue_many([spec()]))

    assert remote.run(remote.find(JobFilter(limit=-1))) == []
    assert ask(server, "promote", (-1,), KEYS["work"]).code == "REQUEST.INVALID"
    remote.close()


def test_a_claim_gets_as_many_as_one_answer_should_hold(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MOST_AT_ONCE", 2)
    remote, store, said = engine(server, "work"), server.service.engine, announcement(queues=None)
    store.run(store.enqueue_many([spec() for _ in range(3)]))
    remote.run(remote.announce(said))

    leases = remote.run(remote.claim(said.id, [Want(tasks=("work",), queues=None, limit=10**9)]))

    assert len(leases) == 2
    remote.close()


def test_a_page_is_read_in_parts_and_is_one(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """I18: jobs come with their payloads."""
    monkeypatch.setattr(records, "PAGE", 2)
    remote, store = engine(server, "read"), server.service.engine
    made = store.run(store.enqueue_many([spec() for _ in range(5)]))
    newest = [each.number for each in made[::-1]]

    for limit in (0, 1, 2, 3, 4, 5, 6):
        found = remote.run(remote.find(JobFilter(limit=limit)))
        assert [job.number for job in found] == newest[:limit]
    rest = remote.run(remote.find(JobFilter(limit=9, before=newest[0])))
    assert [job.number for job in rest] == newest[1:]
    monkeypatch.setattr(records, "PAGE_BYTES", 3)
    with pytest.raises(StoreError, match="ask for fewer"):
        remote.run(remote.find(JobFilter(limit=5)))
    remote.close()


def test_a_look_has_a_deadline(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """S08: there may be no index for it."""
    seen: list[str] = []

    async def looked(engine: Any, op: Op[Any]) -> Any:
        seen.append(op.mode)
        raise ServerDeadline("It takes too long.")

    monkeypatch.setattr(records, "looked", looked)
    remote = engine(server, "read")
    ops: list[Op[Any]] = [remote.find(JobFilter()), remote.count(JobFilter()), remote.history("nightly")]
    for op in ops:
        with pytest.raises(StoreUnavailable, match="too long"):
            remote.run(op)
    assert seen == ["read"] * 3
    remote.close()


def test_who_is_not_let_in_is_told_so(server: Served) -> None:
    nobody = RemoteEngine(server.url)
    with pytest.raises(StoreRefused, match="token"):
        nobody.run(nobody.expect_ready(any_role=True))
    nobody.close()


def test_a_server_that_stops_is_a_store_that_is_away_for_a_moment(server: Served) -> None:
    remote = engine(server, "work")
    server.service.is_stopping = True
    with pytest.raises(StoreUnavailable, match="stop"):
        remote.run(remote.claim(uuid4(), []))
    server.service.is_stopping = False
    remote.close()


def test_a_checkpoint_that_is_none_does_not_break_what_others_are_told() -> None:
    """Somebody has written it into the store by hand."""
    app = Shigoto("memory:")
    with served(app, housekeeping=False) as server:
        first, second, store = announcement(), Hand(server, tasks=["work"]), app.engine
        store.run(store.enqueue_many([spec()]))
        store.run(store.announce(first))
        [lease] = store.run(store.claim(first.id, [Want(tasks=("work",), queues=None, limit=1)]))
        store.run(
            store.report(first.id, [Report(number=lease.number, token=lease.token, checkpoint="{no json")])
        )
        store.run(store.leave(first.id))

        assert [job["checkpoint"] for job in second.claim()] == ["{no json"]
