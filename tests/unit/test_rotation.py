"""Rotation and schedules: what ticks, changes or cannot be read meanwhile."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from shigoto import Encryption, Shigoto, rotation
from shigoto.cli.secrets import _sentence
from shigoto.model.job import JobFilter
from shigoto.model.schedule import Change, Schedule
from shigoto.rotation import Rotation

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
FIRST, BOTH = Encryption({"a": OLD}), Encryption({"b": NEW, "a": OLD})


@pytest.fixture
def app() -> Iterator[Shigoto]:
    app = Shigoto("memory:", encryption=FIRST)

    @app.task
    def report(name: str) -> None: ...

    app.schedules.add("nightly", report.call("Ada"), every="1h")
    app.schedules.add("weekly", report.call("Bob"), every="1h")
    yield app
    app.close()


def keys_in(app: Shigoto) -> set[str]:
    engine = app.engine
    texts = [each.definition for each in engine.run(engine.schedules())]
    texts += [job.payload for job in engine.run(engine.find(JobFilter(limit=100)))]
    return {key for text in texts for key in ("a", "b") if f'"k":"{key}"' in text.replace("\\", "")}


def test_a_job_that_a_schedule_makes_in_the_last_moment_has_the_new_key(
    app: Shigoto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the envelope of its schedule, and the rotation is past its number."""
    rotate = Rotation._patiently

    def and_then(self: Rotation, op: Any) -> Any:
        done = rotate(self, op)
        if done == ([], None):  # there are no more jobs
            app.schedules.run_now("nightly")
        return done

    monkeypatch.setattr(Rotation, "_patiently", and_then)

    rotated = Rotation(app.engine, BOTH).run()

    assert (rotated.schedules, rotated.unreadable) == (2, {})
    assert app.count() == 2  # for two passes
    assert keys_in(app) == {"b"}


def test_a_schedule_that_changes_meanwhile_is_read_again(
    app: Shigoto, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed, calls = Rotation._changed_schedules, 0

    def and_then(self: Rotation, schedules: Iterable[Schedule]) -> Iterator[Change]:
        nonlocal calls
        calls += 1
        found = list(changed(self, schedules))
        if calls == 1:
            app.schedules.pause("nightly")
        yield from found

    monkeypatch.setattr(Rotation, "_changed_schedules", and_then)

    rotated = Rotation(app.engine, BOTH).run()

    assert (rotated.schedules, rotated.unreadable, calls) == (2, {}, 4)
    assert keys_in(app) == {"b"}


def test_a_schedule_that_nobody_here_can_read_does_not_keep_the_rest_from_being_rotated(app: Shigoto) -> None:
    engine = app.engine
    app.tasks["report"].enqueue("Eve")
    [first, _] = engine.run(engine.schedules())
    strange = replace(first, definition='{"recurrence":{"type":"moon"}}')
    engine.run(engine.tick([Change(schedule=strange, seen=first.revision)]))

    rotated = Rotation(engine, BOTH).run()

    assert (rotated.changed, rotated.schedules, rotated.unreadable) == (1, 1, {"?": 1})
    assert keys_in(app) == {"b"}


class TestLargeValues:
    """A page of large jobs is more than PostgreSQL takes at once."""

    def test_what_is_written_at_once_is_bounded(self, app: Shigoto, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rotation, "ROOM", 10_000)
        app.enqueue_many([app.tasks["report"].call("x" * 3_000) for _ in range(20)])
        engine, sizes, pages = app.engine, list[int](), list[int]()
        registry = engine.registry
        reencrypt, encrypted = type(registry).reencrypt, type(registry).encrypted

        def counted(self: Any, changes: Any) -> Any:
            sizes.append(sum(len(change.text) for change in changes))
            return reencrypt(self, changes)

        def paged(self: Any, current: str, *, after: int, limit: int) -> Any:
            pages.append(limit)
            return encrypted(self, current, after=after, limit=limit)

        monkeypatch.setattr(type(registry), "reencrypt", counted)
        monkeypatch.setattr(type(registry), "encrypted", paged)

        rotated = Rotation(engine, BOTH).run()

        assert (rotated.changed, rotated.restless) == (20, False)
        assert keys_in(app) == {"b"}
        assert max(sizes) <= 10_000
        assert pages[:2] == [10, 2]

    def test_one_that_is_larger_than_that_goes_by_itself(
        self, app: Shigoto, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rotation, "ROOM", 100)
        app.enqueue_many([app.tasks["report"].call("x" * 3_000) for _ in range(3)])

        assert Rotation(app.engine, BOTH).run().changed == 3


def test_who_goes_on_with_the_old_key_is_told_of(app: Shigoto, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the old key would be forgotten, and with it what was encrypted meanwhile."""
    rotate = Rotation._patiently

    def and_then(self: Rotation, op: Any) -> Any:
        done = rotate(self, op)
        if isinstance(done, tuple) and done[1] is None:  # there are no more jobs
            app.tasks["report"].enqueue("Eve")
        return done

    monkeypatch.setattr(Rotation, "_patiently", and_then)

    rotated = Rotation(app.engine, BOTH).run()

    assert rotated.restless
    assert "others went on to encrypt by another key" in _sentence(rotated, "b")
