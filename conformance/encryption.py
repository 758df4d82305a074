"""Promises about what is encrypted in a store, and how other envelopes are put there while work goes on."""

from msgspec import structs

from conformance.engine_under_test import EngineUnderTest
from shigoto.model.job import Enqueued, Lease, LogLine
from shigoto.model.secrets import EncryptedText, Envelope, Held, ReencryptedText, write_envelope
from shigoto.model.worker import Ending, LogTail


def envelope(key: str, value: str = "value") -> str:
    """An encrypted text, as engines see it."""
    return write_envelope(Envelope(k=key, v=value.encode()))


def encrypted(
    store: EngineUnderTest, current: str = "new", *, after: int = 0, limit: int = 100
) -> list[EncryptedText]:
    """What other keys than the current one have encrypted."""
    return store.engine.run(store.engine.registry.encrypted(current, after=after, limit=limit))[0]


def reencrypt(store: EngineUnderTest, *changes: ReencryptedText) -> int:
    """Put other envelopes there."""
    return store.engine.run(store.engine.registry.reencrypt(changes))


def run_once(store: EngineUnderTest) -> tuple[Enqueued, Lease]:
    """A job that has said all that a run can say, encrypted by the key `old`, and has failed once."""
    job = store.enqueue(payload=envelope("old", "payload"), tenant="acme")
    worker = store.announce()
    [lease] = store.claim(worker)
    lines = (
        LogLine(1, store.clock.now, "info", envelope("old", "log")),
        LogLine(2, store.clock.now, "info", "plain"),
    )
    store.report(
        worker,
        lease,
        progress=0.5,
        progress_text=envelope("old", "progress"),
        checkpoint=envelope("old", "checkpoint"),
        log=LogTail(1, lines),
    )
    store.settle(
        worker,
        lease,
        Ending.ERRORED,
        error=envelope("old", "error"),
        traceback=envelope("old", "traceback"),
        delay=0,
    )
    return job, lease


class TestEncryptedTexts:
    """What is encrypted is found by how it begins, and is replaced only where it was seen."""

    def test_all_that_a_job_carries_and_says_is_found_with_whose_it_is(self, store: EngineUnderTest) -> None:
        job, lease = run_once(store)
        store.enqueue(payload='{"plain":1}')

        found = encrypted(store)

        assert sorted((each.held, each.token, each.line) for each in found) == [
            ("checkpoint", 0, 0), ("error", lease.token, 0), ("log", lease.token, 1), ("payload", 0, 0),
            ("progress", 0, 0), ("traceback", lease.token, 0),
        ]  # fmt: skip
        assert {(each.number, each.id, each.tenant, each.task) for each in found} == {
            (job.number, job.id, "acme", "work")
        }
        assert {each.held: each.text for each in found} == {
            held: envelope("old", held)
            for held in ("checkpoint", "error", "log", "payload", "progress", "traceback")
        }

    def test_a_result_is_found_too(self, store: EngineUnderTest) -> None:
        store.enqueue()
        worker = store.announce()
        [lease] = store.claim(worker)
        store.settle(worker, lease, Ending.COMPLETED, result=envelope("old"))

        assert [(each.held, each.text) for each in encrypted(store)] == [("result", envelope("old"))]

    def test_what_the_current_key_has_encrypted_is_left_out(self, store: EngineUnderTest) -> None:
        store.enqueue(payload=envelope("new"))
        old = store.enqueue(payload=envelope("newer"))

        assert [each.number for each in encrypted(store, "new")] == [old.number]

    def test_the_id_of_a_key_is_no_pattern(self, store: EngineUnderTest) -> None:
        other = store.enqueue(payload=envelope("aXb"))
        store.enqueue(payload=envelope("a_b"))

        assert [each.number for each in encrypted(store, "a_b")] == [other.number]

    def test_pages_tell_where_they_end_and_that_there_is_no_more(self, store: EngineUnderTest) -> None:
        jobs = [store.enqueue(payload=envelope("old")) for _ in range(3)]
        registry = store.engine.registry

        first, to = store.engine.run(registry.encrypted("new", after=0, limit=2))
        second, end = store.engine.run(registry.encrypted("new", after=to or 0, limit=2))
        rest = store.engine.run(registry.encrypted("new", after=end or 0, limit=2))

        assert [each.number for each in first] == [job.number for job in jobs[:2]]
        assert (to, end) == (jobs[1].number, jobs[2].number)
        assert [each.number for each in second] == [jobs[2].number]
        assert rest == ([], None)

    def test_other_envelopes_stand_there_afterwards(self, store: EngineUnderTest) -> None:
        job, _ = run_once(store)
        changes = [ReencryptedText(each, envelope("new", f"{each.held} anew")) for each in encrypted(store)]

        assert reencrypt(store, *changes) == len(changes)

        assert encrypted(store) == []
        [stored] = store.engine.run(store.engine.get([job.id]))
        assert stored is not None
        assert stored.payload == envelope("new", "payload anew")
        assert (stored.progress_text, stored.error) == (
            envelope("new", "progress anew"),
            envelope("new", "error anew"),
        )
        [attempt] = store.engine.run(store.engine.attempts(job.id))
        assert attempt.traceback == envelope("new", "traceback anew")
        lines = store.engine.run(store.engine.logs(job.id))
        assert [line.text for line in lines] == [envelope("new", "log anew"), "plain"]
        [lease] = store.claim(store.announce())
        assert (lease.payload, lease.checkpoint) == (
            envelope("new", "payload anew"),
            envelope("new", "checkpoint anew"),
        )

    def test_nothing_else_of_a_job_changes(self, store: EngineUnderTest) -> None:
        job, _ = run_once(store)
        [before] = store.engine.run(store.engine.get([job.id]))
        [payload] = [each for each in encrypted(store) if each.held == "payload"]

        reencrypt(store, ReencryptedText(payload, envelope("new")))

        [after] = store.engine.run(store.engine.get([job.id]))
        assert before is not None
        assert after == structs.replace(before, payload=envelope("new"))

    def test_what_somebody_has_changed_meanwhile_stays(self, store: EngineUnderTest) -> None:
        job = store.enqueue(payload=envelope("old"), key="k")
        [seen] = encrypted(store)
        store.enqueue(payload=envelope("newest"), key="k", key_mode="replace")

        assert reencrypt(store, ReencryptedText(seen, envelope("new"))) == 0

        [stored] = store.engine.run(store.engine.get([job.id]))
        assert stored is not None
        assert stored.payload == envelope("newest")

    def test_a_job_that_is_gone_is_no_error(self, store: EngineUnderTest) -> None:
        store.enqueue(payload=envelope("old"))
        [seen] = encrypted(store)
        held: list[Held] = ["payload", "result", "log"]
        gone = [structs.replace(seen, number=seen.number + 1, held=each, token=1, line=1) for each in held]

        assert reencrypt(store, *(ReencryptedText(each, envelope("new")) for each in gone)) == 0
        assert reencrypt(store) == 0

    def test_a_running_job_is_settled_as_usual(self, store: EngineUnderTest) -> None:
        job = store.enqueue(payload=envelope("old"))
        worker = store.announce()
        [lease] = store.claim(worker)
        [seen] = encrypted(store)

        assert reencrypt(store, ReencryptedText(seen, envelope("new"))) == 1
        store.settle(worker, lease, Ending.COMPLETED, result=envelope("new"))

        [stored] = store.engine.run(store.engine.get([job.id]))
        assert stored is not None
        assert (stored.state, stored.payload) == ("completed", envelope("new"))
        assert encrypted(store) == []
