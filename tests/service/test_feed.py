"""One reader of what has happened for all who wait: nothing is missed that is late, nothing is told twice to one."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest

from shigoto import Shigoto, StoreUnavailable
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Relay
from shigoto.model.ids import uuid7
from shigoto.model.service import FeedPosition, Happening
from shigoto.model.time import Millis
from shigoto.server import events as module
from shigoto.server.events import OVERLAP, PAGE, REPLAYED, Feed, Subscription
from shigoto.testing.store import START, VirtualClock
from shigoto.worker import Worker
from tests.postgres import make_store
from tests.virtual_loop import run_virtual

T = TypeVar("T")


class Book(Relay):
    """An engine whose feed is what a test writes, on virtual time; it can be away, and counts the looks."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        super().__init__(MemoryEngine(clock=self.clock))
        self.rows: list[Happening] = []
        self.looks = 0
        self.away = False

    @property
    def registry(self) -> Any:
        return self

    def watch(self) -> Op[None]:
        return _op(lambda: None)

    def happened(self, after: FeedPosition, until: Millis, limit: int) -> Op[tuple[list[Happening], Millis]]:
        def look() -> tuple[list[Happening], Millis]:
            self.looks += 1
            if self.away:
                raise StoreUnavailable("gone")
            found = sorted(
                (each for each in self.rows if after < each.place and each.place.at < until),
                key=lambda each: each.place,
            )
            return found[:limit], self.clock.now

        return _op(look)

    def write(self, number: int, *, late: Millis = 0, final: bool = True) -> Happening:
        """Something happens, and is committed now, `late` milliseconds after the instant it bears."""
        place = FeedPosition(self.clock.now - late, number, 2 + final)
        made = Happening(
            place=place, final=final, outcome="completed", id=UUID(int=number), task="t", queue="q", tenant=""
        )
        self.rows.append(made)
        return made

    def play(self, main: Callable[[Feed], Coroutine[Any, Any, T]]) -> T:
        """Run it beside a feed that reads this book."""

        async def played() -> T:
            feed = Feed(lambda: self)
            reader = asyncio.create_task(feed.run())
            try:
                return await main(feed)
            finally:
                feed.close()
                await reader

        return run_virtual(played, self.clock)


def _op(do: Callable[[], T]) -> Op[T]:
    def steps() -> Steps[T]:
        yield from ()
        return do()

    return Op(start=steps, mode="read")


async def heard(subscription: Subscription, seconds: float) -> list[int]:
    """The numbers of all that is told within this time, in this order."""
    time = asyncio.get_running_loop().time
    end, told = time() + seconds, list[int]()
    while (left := end - time()) > 0:
        told += [each.place.number for each in await subscription.next(left)]
    return told


class TestSubscription:
    def test_it_hears_what_happens_from_now_on_and_each_once(self) -> None:
        book = Book()

        async def main(feed: Feed) -> list[int]:
            book.write(1)
            await asyncio.sleep(1)
            subscription = feed.subscribe(None)
            await subscription.begin()
            told = await heard(subscription, 1)
            for number in range(2, 12):
                book.write(number)
                told += await heard(subscription, 0.7)
            return told + await heard(subscription, 10)

        assert book.play(main) == list(range(2, 12))

    @pytest.mark.parametrize("late", [1, 99, 150, 600, 1_900, OVERLAP])
    def test_a_late_commit_is_not_missed(self, late: Millis) -> None:
        """A25: a commit may come up to two seconds after the instant it bears."""
        book = Book()

        async def main(feed: Feed) -> list[int]:
            subscription = feed.subscribe(None)
            await subscription.begin()
            told = await heard(subscription, 3)
            book.write(1)
            told += await heard(subscription, 0.5)
            book.write(2, late=late)
            return told + await heard(subscription, 5)

        assert book.play(main) == [1, 2]

    def test_two_in_the_same_millisecond_are_two(self) -> None:
        book = Book()

        async def main(feed: Feed) -> list[int]:
            subscription = feed.subscribe(None)
            await subscription.begin()
            book.write(7)
            told = await heard(subscription, 0.0005)
            book.write(3)
            return told + await heard(subscription, 1)

        assert sorted(book.play(main)) == [3, 7]

    def test_who_comes_back_hears_what_it_has_missed(self) -> None:
        """S1-24: resumes by the place of the last event."""
        book = Book()

        async def main(feed: Feed) -> list[int]:
            places = []
            for number in range(1, 6):
                places.append(book.write(number).place)
                await asyncio.sleep(60)
            subscription = feed.subscribe(places[1])
            await subscription.begin()
            told = await heard(subscription, 1)
            book.write(6)
            return told + await heard(subscription, 5)

        assert book.play(main) == [2, 3, 4, 5, 6], "the one it knows is told again: it may be one of several"

    def test_many_that_were_missed_come_in_pages(self) -> None:
        book = Book()

        async def main(feed: Feed) -> list[int]:
            begin = FeedPosition(book.clock.now)
            for number in range(2 * PAGE + 5):
                book.write(number + 1)
                if number % 10 == 0:
                    await asyncio.sleep(0.05)
            subscription = feed.subscribe(begin)
            await subscription.begin()
            return await heard(subscription, 60)

        assert book.play(main) == list(range(1, 2 * PAGE + 6))

    def test_what_is_older_than_an_hour_is_not_told_and_that_is_said(self) -> None:
        book = Book()

        async def main(feed: Feed) -> tuple[list[int], bool, FeedPosition]:
            old = book.write(1).place
            await asyncio.sleep(1_000)
            book.write(2)
            await asyncio.sleep(REPLAYED / 1000 - 500)
            book.write(3)
            subscription = feed.subscribe(old)
            begin = await subscription.begin()
            return await heard(subscription, 5), subscription.lost, begin

        told, lost, begin = book.play(main)

        assert (told, lost) == ([2, 3], True)
        assert begin == FeedPosition(START + 500_000)

    def test_a_place_in_the_future_is_now(self) -> None:
        book = Book()

        async def main(feed: Feed) -> list[int]:
            subscription = feed.subscribe(FeedPosition(book.clock.now + 10**9))
            await subscription.begin()
            book.write(1)
            return await heard(subscription, 1)

        assert book.play(main) == [1]

    def test_who_is_slow_reads_from_the_store_and_misses_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "ROOM", 10)
        book = Book()

        async def main(feed: Feed) -> tuple[list[int], bool]:
            subscription = feed.subscribe(None)
            await subscription.begin()
            told = await heard(subscription, 1)
            for number in range(1, 41):
                book.write(number)
                await asyncio.sleep(0.1)
            return told + await heard(subscription, 10), subscription.lost

        told, lost = book.play(main)

        assert list(dict.fromkeys(told)) == list(range(1, 41))
        assert not lost

    def test_while_the_store_is_away_nothing_is_told_and_then_all(self) -> None:
        book = Book()

        async def main(feed: Feed) -> list[int]:
            subscription = feed.subscribe(None)
            await subscription.begin()
            await heard(subscription, 1)
            book.away = True
            await heard(subscription, 30)
            book.write(1)
            book.away = False
            await asyncio.sleep(0)
            book.write(2)
            return await heard(subscription, 5)

        assert book.play(main) == [1, 2]

    def test_the_place_to_come_back_to_moves_on_while_nothing_happens(self) -> None:
        book = Book()

        async def main(feed: Feed) -> FeedPosition:
            subscription = feed.subscribe(None)
            await subscription.begin()
            await heard(subscription, 7_200)
            return subscription.place

        assert book.play(main) >= FeedPosition(START + 7_190_000)

    @pytest.mark.parametrize("steps", [0, 1, 2, 3, 100])
    def test_closing_the_feed_ends_it(self, steps: int) -> None:
        """Also while it still reads what it has missed."""
        book = Book()

        async def main(feed: Feed) -> tuple[list[Happening], bool, int]:
            subscription = feed.subscribe(None)
            await subscription.begin()
            waiting = asyncio.create_task(subscription.next(3_600))
            for _ in range(steps):
                await asyncio.sleep(0)
            feed.close()
            return await waiting, subscription.closed, book.clock.now - START

        told, closed, took = book.play(main)

        assert (told, closed) == ([], True)
        assert took < 1_000


def test_nobody_looks_while_nobody_waits() -> None:
    book = Book()

    async def main(feed: Feed) -> tuple[int, int, int]:
        await asyncio.sleep(100)
        before = book.looks
        subscription = feed.subscribe(None)
        await subscription.begin()
        await heard(subscription, 100)
        meanwhile = book.looks
        subscription.close()
        await asyncio.sleep(100)
        return before, meanwhile, book.looks

    before, meanwhile, after = book.play(main)

    assert before == 0
    assert 100 / module.READ_EVERY / 2 < meanwhile < 2 * 100 / module.READ_EVERY
    assert after <= meanwhile + 1


class TestEnded:
    async def test_it_hears_of_an_end_that_it_did_not_see_itself(
        self, app: Shigoto, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S1-24: the feed alone wakes whoever waits for a result."""
        monkeypatch.setattr(module, "OWN_LOOK", 3_600.0)

        async def ends(id: UUID, _: Feed) -> None:
            await Worker(app, drain=True, beats="loop").run()

        assert await waited(app, ends)

    async def test_it_looks_by_itself_too(self, app: Shigoto, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "OWN_LOOK", 0.01)

        async def ends(id: UUID, _: Feed) -> None:
            await Worker(app, drain=True, beats="loop").run()

        assert await waited(app, ends, reading=False)

    async def test_a_job_that_has_ended_or_never_was_is_not_waited_for(self, app: Shigoto) -> None:
        feed = Feed(lambda: app.engine)

        assert await feed.ended(uuid7(), asyncio.get_running_loop().time() + 60)

    async def test_time_is_over(self, app: Shigoto) -> None:
        async def nothing(id: UUID, _: Feed) -> None:
            pass

        assert not await waited(app, nothing, seconds=0.1)

    async def test_closing_lets_all_go_at_once(self, app: Shigoto) -> None:
        async def close(id: UUID, feed: Feed) -> None:
            feed.close()

        assert not await waited(app, close, seconds=3_600)

    async def test_one_that_was_retried_meanwhile_is_waited_for_further(
        self, app: Shigoto, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "OWN_LOOK", 3_600.0)

        async def ends(id: UUID, feed: Feed) -> None:
            await app.job(id).acancel()
            await app.job(id).aretry()
            await asyncio.sleep(2 * module.READ_EVERY)
            await app.job(id).acancel()

        assert await waited(app, ends)


@pytest.mark.engine("postgres")
async def test_it_hears_of_ends_on_postgresql(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1-24."""
    monkeypatch.setattr(module, "OWN_LOOK", 3_600.0)
    make_store(postgres_database)
    app = shop(Shigoto(postgres_database))

    async def ends(id: UUID, _: Feed) -> None:
        await Worker(app, drain=True, beats="loop", any_role=True).run()

    try:
        assert await waited(app, ends)
    finally:
        app.close()


async def waited(
    app: Shigoto,
    act: Callable[[UUID, Feed], Awaitable[None]],
    *,
    seconds: float = 30,
    reading: bool = True,
) -> bool:
    """Whether somebody who waits for a job hears of its end, while somebody else acts."""
    loop = asyncio.get_running_loop()
    feed = Feed(lambda: app.engine)
    reader = asyncio.create_task(feed.run()) if reading else None
    [handle, *_] = await app.aenqueue_many([app.tasks["greet"].call("Ada")])
    waiting = asyncio.create_task(feed.ended(handle.id, loop.time() + seconds))
    await asyncio.sleep(0.05)
    await act(handle.id, feed)
    try:
        return await waiting
    finally:
        feed.close()
        if reader is not None:
            await reader


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shigoto]:
    app = Shigoto(engine=MemoryEngine()) if request.param == "memory" else Shigoto(tmp_path / "jobs.db")
    yield shop(app)
    app.close()


def shop(app: Shigoto) -> Shigoto:
    @app.task
    async def greet(name: str) -> str:
        return f"Hello, {name}"

    return app
