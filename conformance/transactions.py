"""Promises about the caller's own transaction: `TestJoin` or `TestNoJoin`, by the engine's capabilities.

The caller may bring an open transaction (`join`), or be given one, with an operation of ours at its end (`block`).
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from conformance.engine_under_test import Connection, EngineUnderTest, ended
from shigoto.engine.op import Op, Steps
from shigoto.model.errors import TransactionTooLong, Unsupported
from shigoto.model.job import Enqueued, Lease, State
from shigoto.model.worker import Ending, Verdict


class TestNoJoin:
    """An engine that cannot join says so before anything is written."""

    def test_joining_is_refused_with_a_remedy(self, store: EngineUnderTest) -> None:
        assert not store.engine.capabilities.joins

        with pytest.raises(Unsupported, match=f"(?s){store.engine.capabilities.name}.*after your commit"):
            store.engine.join(object(), store.engine.enqueue_many([store.spec()]))

        assert store.find() == []

    async def test_so_it_is_in_async_code(self, store: EngineUnderTest) -> None:
        with pytest.raises(Unsupported, match="after your commit"):
            await store.engine.ajoin(object(), store.engine.enqueue_many([store.spec()]))

        assert store.find() == []

    def test_a_block_is_refused(self, store: EngineUnderTest) -> None:
        with pytest.raises(Unsupported, match=store.engine.capabilities.name):
            store.engine.block(lambda: store.engine.enqueue_many([]), limit=5)


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
        with_ear = structs.replace(op, committed=heard.append)

        connection.execute("BEGIN")
        store.engine.join(connection, with_ear)
        connection.commit()

        assert heard == []

    async def test_an_async_caller_joins_as_well(
        self, store: EngineUnderTest, connection: Connection
    ) -> None:
        connection.execute("BEGIN")
        await store.engine.ajoin(connection, store.engine.enqueue_many([store.spec()]))
        assert store.find() == []

        connection.commit()

        assert store.counts().pending == 1

    def test_a_block_commits_its_statements_with_the_last_operation(
        self, store: EngineUnderTest, connection: Connection
    ) -> None:
        """I9."""
        worker = store.announce()
        lease = store.start(worker)

        with store.engine.block(completing(store, worker, lease), limit=60) as block:
            block.execute("INSERT INTO callers_own VALUES (1)")
            store.engine.join(block, store.engine.enqueue_many([store.spec()]))
            assert (store.job(lease).state, store.counts().pending) == (State.PROCESSING, 0)

        assert (store.job(lease).state, store.counts().pending) == (State.COMPLETED, 1)
        assert holds(connection, 1)

    async def test_so_does_an_async_block(self, store: EngineUnderTest, connection: Connection) -> None:
        worker = store.announce()
        lease = store.start(worker)

        async with store.engine.block(completing(store, worker, lease), limit=60) as block:
            await block.execute("INSERT INTO callers_own VALUES (1)")
            await store.engine.ajoin(block, store.engine.enqueue_many([store.spec()]))
            assert (store.job(lease).state, store.counts().pending) == (State.PROCESSING, 0)

        assert (store.job(lease).state, store.counts().pending) == (State.COMPLETED, 1)
        assert holds(connection, 1)

    def test_a_block_that_raises_is_rolled_back(self, store: EngineUnderTest, connection: Connection) -> None:
        worker = store.announce()
        lease = store.start(worker)

        def fail() -> None:
            with store.engine.block(completing(store, worker, lease), limit=60) as block:
                block.execute("INSERT INTO callers_own VALUES (1)")
                store.engine.join(block, store.engine.enqueue_many([store.spec()]))
                raise KeyError("in the block")

        with pytest.raises(KeyError, match="in the block"):
            fail()

        assert (store.job(lease).state, store.counts().pending) == (State.PROCESSING, 0)
        assert not holds(connection, 1)

    async def test_so_is_an_async_block(self, store: EngineUnderTest, connection: Connection) -> None:
        worker = store.announce()
        lease = store.start(worker)

        async def fail() -> None:
            async with store.engine.block(completing(store, worker, lease), limit=60) as block:
                await block.execute("INSERT INTO callers_own VALUES (1)")
                raise KeyError("in the block")

        with pytest.raises(KeyError, match="in the block"):
            await fail()

        assert store.job(lease).state is State.PROCESSING
        assert not holds(connection, 1)

    def test_a_block_whose_last_operation_raises_is_rolled_back(
        self, store: EngineUnderTest, connection: Connection
    ) -> None:
        """Also what that operation itself has written by then."""
        worker = store.announce()
        lease = store.start(worker)
        settle = completing(store, worker, lease)()

        def complain() -> Steps[None]:
            yield from settle.start()
            raise KeyError("at the end")

        with (
            pytest.raises(KeyError, match="at the end"),
            store.engine.block(lambda: Op(start=complain), limit=60) as block,
        ):
            block.execute("INSERT INTO callers_own VALUES (1)")

        assert store.job(lease).state is State.PROCESSING
        assert not holds(connection, 1)

    def test_what_follows_a_commit_is_done_after_that_of_a_block(
        self, store: EngineUnderTest, connection: Connection
    ) -> None:
        """The engine itself began it."""
        worker = store.announce()
        lease = store.start(worker)
        settle = completing(store, worker, lease)()
        seen: list[State] = []

        def committed(_: object) -> None:
            seen.append(store.job(lease).state)

        op = Op(start=settle.start, committed=committed)
        with store.engine.block(lambda: op, limit=60) as block:
            block.execute("INSERT INTO callers_own VALUES (1)")
            assert seen == []

        assert seen == [State.COMPLETED]

    def test_a_block_that_stays_open_is_rolled_back_and_others_write(
        self, store: EngineUnderTest, connection: Connection
    ) -> None:
        worker = store.announce()
        lease = store.start(worker)
        written = threading.Event()

        def write() -> None:
            store.enqueue()
            written.set()

        other = threading.Thread(target=write)

        def stay() -> None:
            with store.engine.block(completing(store, worker, lease), limit=0.2) as block:
                block.execute("INSERT INTO callers_own VALUES (1)")
                other.start()
                assert written.wait(10)
                while not threading.Event().wait(
                    0.01
                ):  # others may write at once where a block locks rows only
                    block.execute("SELECT 1")

        with pytest.raises(TransactionTooLong, match=r"0\.2 s"):
            stay()

        other.join(10)
        assert (store.job(lease).state, store.counts().pending) == (State.PROCESSING, 1)
        assert not holds(connection, 1)


def completing(store: EngineUnderTest, worker: UUID, lease: Lease) -> Callable[[], Op[Any]]:
    """The usual end of a block."""
    return lambda: store.engine.settle(worker, [ended(lease, Ending.COMPLETED)])


def holds(connection: Connection, number: int) -> bool:
    """Whether the caller's table has this number: then it cannot be inserted again."""
    connection.execute("BEGIN")
    try:
        connection.execute(f"INSERT INTO callers_own VALUES ({number})")
    except Exception:
        return True
    finally:
        connection.rollback()
    return False
