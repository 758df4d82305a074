"""Promises about what the service keeps beside the jobs: tokens, the audit, and the feed of what has happened."""

import pytest
from msgspec import structs

from conformance.engine_under_test import EngineUnderTest
from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Registry
from shigoto.model.errors import JobNotFound
from shigoto.model.job import Enqueued, Lease, State
from shigoto.model.service import (
    AUDIT_KEPT_FOR,
    AUDIT_NAME,
    AUDIT_TEXT,
    AuditEntry,
    FeedPosition,
    Happening,
    Token,
)
from shigoto.model.time import Millis
from shigoto.model.worker import Ending, SweepOrder

FOREVER: Millis = 1 << 53


def registry(store: EngineUnderTest) -> Registry:
    """The engine's."""
    return store.engine.registry


def tokens(store: EngineUnderTest) -> list[Token]:
    """All of them."""
    return store.engine.run(registry(store).tokens())


def add(store: EngineUnderTest, token: Token) -> bool:
    """Keep a token."""
    return store.engine.run(registry(store).add_token(token))


def token(id: str = "aaaabbbbcccc", **more: object) -> Token:
    """One that nothing special is said about."""
    plain = Token(id=id, name="web", hash=bytes(range(32)), scopes=("submit", "read"))
    return structs.replace(plain, **more)


class TestTokens:
    """Who may ask the service for what."""

    def test_a_token_comes_back_to_the_letter_as_created_now(self, store: EngineUnderTest) -> None:
        said = token(
            name="Bücher 🐟 \"quoted\" \\ 'n'",
            scopes=("submit", "work", "read", "admin"),
            queues=("mail", 'so,"odd'),
            tenant="acme",
            expires_at=store.clock.now + 5,
        )

        assert add(store, said)

        assert tokens(store) == [structs.replace(said, created_at=store.clock.now)]

    def test_no_queues_and_no_tenant_are_not_the_empty_ones(self, store: EngineUnderTest) -> None:
        add(store, token("a" * 12, queues=None, tenant=None))
        store.clock.advance(1)
        add(store, token("b" * 12, queues=(), tenant=""))

        assert [(each.queues, each.tenant) for each in tokens(store)] == [(None, None), ((), "")]

    def test_a_taken_id_is_refused_and_stays_as_it_was(self, store: EngineUnderTest) -> None:
        add(store, token(name="first"))
        store.clock.advance(1_000)

        assert not add(store, token(name="second", hash=bytes(32)))

        assert [(each.name, each.hash) for each in tokens(store)] == [("first", bytes(range(32)))]

    def test_the_oldest_comes_first(self, store: EngineUnderTest) -> None:
        for id in ("m" * 12, "z" * 12, "a" * 12):
            add(store, token(id))
            store.clock.advance(1)

        assert [each.id for each in tokens(store)] == ["m" * 12, "z" * 12, "a" * 12]

    def test_a_token_is_revoked_once_and_stays_to_be_seen(self, store: EngineUnderTest) -> None:
        add(store, token())
        store.clock.advance(1_000)
        revoked_at = store.clock.now

        assert store.engine.run(registry(store).revoke_token("aaaabbbbcccc"))
        store.clock.advance(1_000)
        assert not store.engine.run(registry(store).revoke_token("aaaabbbbcccc"))
        assert not store.engine.run(registry(store).revoke_token("zzzzzzzzzzzz"))

        assert [each.revoked_at for each in tokens(store)] == [revoked_at]

    def test_an_expired_one_is_listed_too(self, store: EngineUnderTest) -> None:
        add(store, token(expires_at=store.clock.now + 1))
        store.clock.advance(1_000_000)

        [kept] = tokens(store)
        assert not kept.alive(store.clock.now)

    def test_no_tokens(self, store: EngineUnderTest) -> None:
        assert tokens(store) == []


def entry(target: str = "default", **more: object) -> AuditEntry:
    """One that nothing special is said about."""
    return structs.replace(AuditEntry(actor="cli:ann@host", action="queue.pause", target=target), **more)


def note(store: EngineUnderTest, *entries: AuditEntry) -> None:
    """Write them into the audit."""
    store.engine.run(registry(store).note(entries))


def noted(
    store: EngineUnderTest, *, before: int | None = None, limit: int = 100, target: str | None = None
) -> list[AuditEntry]:
    """A page of the audit."""
    return store.engine.run(registry(store).noted(before=before, limit=limit, target=target))


class TestAudit:
    """S0-66: who has done what, to which."""

    def test_an_entry_comes_back_to_the_letter_as_of_now(self, store: EngineUnderTest) -> None:
        said = entry('state:failed tag:"ü"', before='{"paused":false}', after='{"paused":true,"x":"\\u0000"}')

        note(store, said)

        [read] = noted(store)
        assert read == structs.replace(said, number=read.number, at=store.clock.now)
        assert read.number > 0

    def test_the_newest_comes_first_and_the_last_of_several_is_the_newest(
        self, store: EngineUnderTest
    ) -> None:
        note(store, entry("a"), entry("b"))
        store.clock.advance(1_000)
        note(store, entry("c"))

        read = noted(store)
        assert [each.target for each in read] == ["c", "b", "a"]
        assert [each.number for each in read] == sorted((each.number for each in read), reverse=True)

    def test_pages_follow_each_other(self, store: EngineUnderTest) -> None:
        note(store, *(entry(str(at)) for at in range(7)))

        pages: list[list[str]] = []
        before: int | None = None
        while page := noted(store, before=before, limit=3):
            pages.append([each.target for each in page])
            before = page[-1].number

        assert pages == [["6", "5", "4"], ["3", "2", "1"], ["0"]]

    def test_of_one_target_alone(self, store: EngineUnderTest) -> None:
        note(store, entry("a"), entry("b"), entry("a"), entry("b"))

        newest, oldest = noted(store, target="a")
        assert (newest.target, oldest.target) == ("a", "a")
        assert noted(store, target="a", before=newest.number, limit=5) == [oldest]
        assert noted(store, target="c") == []

    def test_what_no_store_can_hold_is_cut_and_spelt_out_and_found_again(
        self, store: EngineUnderTest
    ) -> None:
        target = 'error:"' + "é" * 5_000 + "\0\ud800"

        note(store, entry(target, actor="a\0b", before="x" * 100_000))

        [read] = noted(store, target=target)
        assert read.actor == "a\\x00b"
        assert len(read.target.encode()) <= AUDIT_NAME
        assert read.target.startswith('error:"éé')
        assert len((read.before or "").encode()) <= AUDIT_TEXT

    def test_nothing_to_note(self, store: EngineUnderTest) -> None:
        note(store)

        assert noted(store) == []

    def test_it_is_written_with_the_action_that_it_tells_of(self, store: EngineUnderTest) -> None:
        job = store.enqueue()

        def cancelling() -> Steps[list[State | None]]:
            states = yield from store.engine.cancel([job.id]).start()
            yield from registry(store).note([entry(str(job.id), action="job.cancel")]).start()
            return states

        assert store.engine.run(Op(start=cancelling)) == [State.CANCELLED]
        assert [each.target for each in noted(store)] == [str(job.id)]

    def test_an_action_that_is_refused_notes_nothing(self, store: EngineUnderTest) -> None:
        unknown = store.new_id()

        def retrying() -> Steps[list[Enqueued]]:
            retried = yield from store.engine.retry([unknown]).start()
            yield from registry(store).note([entry(str(unknown), action="job.retry")]).start()
            return retried

        with pytest.raises(JobNotFound):
            store.engine.run(Op(start=retrying))
        assert noted(store) == []

    def test_a_year_later_a_sweep_forgets_it(self, store: EngineUnderTest) -> None:
        note(store, entry("old"))
        store.clock.advance(1_000)
        note(store, entry("new"))
        store.clock.advance(AUDIT_KEPT_FOR - 999)

        store.sweep()

        assert [each.target for each in noted(store)] == ["new"]

    def test_numbers_are_never_given_twice(self, store: EngineUnderTest) -> None:
        note(store, entry("old"))
        [old] = noted(store)
        store.clock.advance(AUDIT_KEPT_FOR + 1)
        store.sweep()

        note(store, entry("new"))

        assert noted(store)[0].number > old.number


def feed(
    store: EngineUnderTest, after: FeedPosition | None = None, until: Millis = FOREVER, limit: int = 1_000
) -> list[Happening]:
    """What has happened."""
    return store.engine.run(registry(store).happened(after or FeedPosition(0), until, limit))[0]


def told(happenings: list[Happening]) -> list[tuple[int, bool, str]]:
    """Of which job, whether it was its end, and what."""
    return [(each.place.number, each.final, each.outcome) for each in happenings]


class TestFeed:
    """A25: what has happened to jobs, in order, each once."""

    def test_each_end_is_told_once_in_order_with_all_that_is_known(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        jobs: list[Lease] = []
        for ending in (Ending.COMPLETED, Ending.FAILED, Ending.CANCELLED):
            jobs.append(store.start(worker, queue="mail", tenant="acme", payload='{"secret": 1}'))
            store.settle(worker, jobs[-1], ending, error="broke", result='"secret"')
            store.clock.advance(1)

        happened = feed(store)

        assert told(happened) == [
            (jobs[0].number, True, "completed"),
            (jobs[1].number, True, "failed"),
            (jobs[2].number, True, "cancelled"),
        ]
        assert [each.id for each in happened] == [job.id for job in jobs]
        assert {(each.task, each.queue, each.tenant) for each in happened} == {("work", "mail", "acme")}
        assert [each.failure_kind for each in happened] == [None, "error", None]
        assert [each.place.at for each in happened] == [store.clock.now - 3 + at for at in range(3)]

    def test_a_run_that_is_retried_is_told_and_then_the_end(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, Ending.ERRORED, error="broke")
        store.clock.advance(1)
        [again] = store.claim(worker)
        store.settle(worker, again, Ending.SNOOZED, delay=0)
        store.clock.advance(1)
        store.promote()
        [again] = store.claim(worker)
        store.settle(worker, again, Ending.COMPLETED)

        assert told(feed(store)) == [
            (lease.number, False, "errored"),
            (lease.number, False, "snoozed"),
            (lease.number, True, "completed"),
        ]

    def test_what_ended_without_a_run_is_told(self, store: EngineUnderTest) -> None:
        cancelled, expired = store.enqueue(), store.enqueue(expires_in=10)
        store.cancel(cancelled)
        store.clock.advance(11)
        store.sweep()

        happened = feed(store)

        assert told(happened) == [(cancelled.number, True, "cancelled"), (expired.number, True, "failed")]
        assert happened[1].failure_kind == "expired"

    def test_crashes_are_told_and_what_they_lead_to(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker, max_crashes=1)
        store.fence(worker)
        other = store.announce()
        [again] = store.claim(other)
        store.clock.advance(1)
        store.settle(other, again, Ending.CRASHED, alone=True)

        happened = feed(store)

        assert told(happened) == [(lease.number, False, "crashed"), (lease.number, True, "failed")]
        assert happened[-1].failure_kind == "crash_loop"

    def test_a_job_that_was_taken_by_force_has_ended_once(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.cancel(lease, force=True)

        assert told(feed(store)) == [(lease.number, True, "cancelled")]

    def test_nothing_up_to_after_and_nothing_from_until_on(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        leases: list[Lease] = []
        for _ in range(4):
            leases.append(store.start(worker))
            store.settle(worker, leases[-1], Ending.COMPLETED)
            store.clock.advance(10)
        places = [each.place for each in feed(store)]

        assert feed(store, places[3]) == []
        assert [each.place for each in feed(store, places[0])] == places[1:]
        assert [each.place for each in feed(store, places[0], until=places[2].at)] == [places[1]]
        assert [each.place for each in feed(store, places[0], until=places[2].at + 1)] == places[1:3]
        assert [each.place for each in feed(store, FeedPosition(places[1].at))] == places[1:]
        assert [each.place for each in feed(store, FeedPosition(places[1].at + 1))] == places[2:]

    def test_a_single_instant_is_told_in_pages(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        jobs = store.engine.run(store.engine.enqueue_many([store.spec() for _ in range(10)]))
        leases = store.claim(worker)
        for at, lease in enumerate(leases):
            store.settle(worker, lease, Ending.ERRORED if at % 3 == 0 else Ending.COMPLETED, delay=1_000)

        pages: list[Happening] = []
        while page := feed(store, pages[-1].place if pages else None, limit=3):
            assert len(page) <= 3
            pages += page

        assert [each.place.number for each in pages] == [job.number for job in jobs]
        assert [each.place for each in pages] == sorted({each.place for each in pages})
        assert [each.outcome for each in pages] == [
            "errored" if at % 3 == 0 else "completed" for at in range(10)
        ]

    def test_two_ends_of_one_job_in_one_instant_have_two_places(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, Ending.ERRORED, delay=0)
        [first] = feed(store)
        [again] = store.claim(worker)
        store.settle(worker, again, Ending.COMPLETED)

        assert [each.outcome for each in feed(store, first.place)] == ["completed"]

    def test_it_goes_on_when_history_is_pruned(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        gone = store.start(worker)
        store.settle(worker, gone, Ending.COMPLETED)
        [old] = feed(store)
        store.clock.advance(1_000)
        store.sweep(SweepOrder(keep_completed_for=0))
        kept = store.start(worker)
        store.settle(worker, kept, Ending.COMPLETED)

        assert [each.place.number for each in feed(store, old.place)] == [kept.number]

    def test_it_is_the_same_for_those_who_watch(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        before = store.start(worker)
        store.settle(worker, before, Ending.ERRORED, delay=0)

        store.engine.run(registry(store).watch())
        store.engine.run(registry(store).watch())

        [after] = store.claim(worker)
        store.settle(worker, after, Ending.COMPLETED)
        assert told(feed(store)) == [(before.number, False, "errored"), (after.number, True, "completed")]

    def test_it_tells_what_time_it_is(self, store: EngineUnderTest) -> None:
        assert store.engine.run(registry(store).happened(FeedPosition(0), FOREVER, 1)) == (
            [],
            store.clock.now,
        )
