"""Promises about the caller's own transaction: `TestJoin` or `TestNoJoin`, by the engine's capabilities."""

from collections.abc import Iterator

import pytest

from shigoto.model.errors import Unsupported
from shigoto.model.job import Enqueued, State
from shigoto.model.outcome import Ending, Verdict
from shigoto.testing.conformance.fixture import Connection, EngineUnderTest, ended


class TestNoJoin:
    """An engine that cannot join says so before anything is written."""

    def test_joining_is_refused_with_a_remedy(self, store: EngineUnderTest) -> None:
        assert not store.engine.capabilities.joins

        with pytest.raises(Unsupported, match=f"(?s){store.engine.capabilities.name}.*after your commit"):
            store.engine.join(object(), store.engine.enqueue_many([store.spec()]))

        assert store.find() == []


class TestJoin:
    """The job and the caller's own writes happen together or not at all."""

    @pytest.fixture
    def connection(self, store: EngineUnderTest) -> Iterator[Connection]:
        """The caller's connection, to a table of the caller's in the same database."""
        assert store.engine.capabilities.joins
        store.engine.run(store.engine.enqueue_many([]))
        connection = store.connect()
        connection.execute("CREATE TABLE callers_own (n INTEGER PRIMARY KEY)")
        connection.commit()
        yield connection
        connection.close()

    def enqueue(self, store: EngineUnderTest, connection: Connection) -> Enqueued:
        """Enqueue one job on the caller's connection."""
        return store.engine.join(connection, store.engine.enqueue_many([store.spec()]))[0]

    def test_a_commit_makes_the_job(self, store: EngineUnderTest, connection: Connection) -> None:
        """The user and the job are created together."""
        worker = store.announce()
        connection.execute("BEGIN")
        connection.execute("INSERT INTO callers_own VALUES (1)")
        job = self.enqueue(store, connection)
        connection.commit()

        assert job.status == "inserted"
        assert [lease.id for lease in store.claim(worker)] == [job.id]
        assert store.counts().processing == 1

    def test_a_rollback_unmakes_it(self, store: EngineUnderTest, connection: Connection) -> None:
        worker = store.announce()
        connection.execute("BEGIN")
        connection.execute("INSERT INTO callers_own VALUES (1)")
        job = self.enqueue(store, connection)
        connection.rollback()

        assert not store.stored(job)
        assert store.claim(worker) == []
        assert store.counts().pending == 0

    def test_until_the_commit_nobody_sees_it(self, store: EngineUnderTest, connection: Connection) -> None:
        connection.execute("BEGIN")
        job = self.enqueue(store, connection)

        assert not store.stored(job)
        assert store.find() == []
        connection.commit()
        assert store.stored(job)

    def test_joining_never_commits(self, store: EngineUnderTest, connection: Connection) -> None:
        """A26."""
        connection.execute("BEGIN")
        connection.execute("INSERT INTO callers_own VALUES (1)")
        for _ in range(3):
            self.enqueue(store, connection)
        connection.rollback()

        connection.execute("BEGIN")
        connection.execute("INSERT INTO callers_own VALUES (1)")
        connection.commit()
        assert store.find() == []

    def test_a_rolled_back_id_is_still_new(self, store: EngineUnderTest, connection: Connection) -> None:
        spec = store.spec(key="k")
        connection.execute("BEGIN")
        store.engine.join(connection, store.engine.enqueue_many([spec]))
        connection.rollback()

        [again] = store.engine.run(store.engine.enqueue_many([spec]))

        assert again.status == "inserted"
        assert store.counts().pending == 1

    def test_a_key_is_resolved_inside_the_transaction(
        self, store: EngineUnderTest, connection: Connection
    ) -> None:
        connection.execute("BEGIN")
        specs = [store.spec(key="k"), store.spec(key="k")]
        statuses = [
            store.engine.join(connection, store.engine.enqueue_many([spec]))[0].status for spec in specs
        ]
        connection.commit()

        assert statuses == ["inserted", "existing"]

    def test_an_effect_and_its_completion_commit_together(
        self, store: EngineUnderTest, connection: Connection
    ) -> None:
        """I9."""
        worker = store.announce()
        lease = store.start(worker)
        settle = store.engine.settle(worker, [ended(lease, Ending.COMPLETED, result="1")])

        connection.execute("BEGIN")
        connection.execute("INSERT INTO callers_own VALUES (1)")
        store.engine.join(connection, settle)
        connection.rollback()
        assert store.job(lease).state is State.PROCESSING

        connection.execute("BEGIN")
        connection.execute("INSERT INTO callers_own VALUES (1)")
        verdicts = store.engine.join(connection, settle)
        connection.commit()

        assert verdicts == [Verdict.ACCEPTED]
        assert (store.job(lease).state, store.job(lease).result) == (State.COMPLETED, "1")

    def test_a_lost_lease_is_told_inside_the_transaction(
        self, store: EngineUnderTest, connection: Connection
    ) -> None:
        """I9: the caller rolls back, and the effect has not happened."""
        worker = store.announce()
        lease = store.start(worker)
        store.fence(worker)

        connection.execute("BEGIN")
        connection.execute("INSERT INTO callers_own VALUES (1)")
        verdicts = store.engine.join(
            connection, store.engine.settle(worker, [ended(lease, Ending.COMPLETED)])
        )
        connection.rollback()

        assert verdicts == [Verdict.LOST]
        assert store.job(lease).state is State.PENDING

    def test_what_must_follow_a_commit_is_left_to_the_caller(
        self, store: EngineUnderTest, connection: Connection
    ) -> None:
        """`committed` belongs to transactions that the engine itself began."""
        heard: list[object] = []
        op = store.engine.enqueue_many([store.spec()])
        with_ear = type(op)(start=op.start, mode=op.mode, rings=op.rings, committed=heard.append)

        connection.execute("BEGIN")
        store.engine.join(connection, with_ear)
        connection.commit()

        assert heard == []
