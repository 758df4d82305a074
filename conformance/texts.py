"""Promises about texts: every store holds the same, and gives them back to the letter."""

from typing import Any

import pytest

from conformance.engine_under_test import EngineUnderTest
from conformance.filters import numbers
from shigoto import Shigoto
from shigoto.model.errors import OptionInvalid
from shigoto.model.job import JobFilter, LogLine, State
from shigoto.model.text import fit, spelt_out
from shigoto.model.worker import Ending, LogTail
from shigoto.options import CallOptions

# What JSON can say and a database's own JSON may not hold, and what only looks like it.
DATA = [
    r'{"a":"\u0000"}',
    r'{"\u0000":["x\u0000y",{"\u0000\u0000":null}]}',
    r'{"a":"\\u0000"}',
    r'{"a":"\\\u0000"}',
    r'{"a":"\ud800"}',
    '{"a":"\u2400 \\\\x00 \ue000\uffff\U0010ffff"}',
    '{"a" :  1.10, "a":1e400}',
]
# What may be a key, a tenant or a tag although it looks like trouble.
NAMES = [r"\u0000", r"\x00", r"\\0", '"', "'", "%s $1 :key {}", "\u2400", "é", "e\u0301", "名前 😀"]
# What only describes.
WORDS = ["a\0b", "\0", "\ud800\0\udfff", r"\u0000", "line\r\n\tline\x1b[31m", "名前 😀\U0010ffff"]


class TestTexts:
    """The rule is `shigoto.model.text`'s; what it lets through is safe in every store."""

    @pytest.mark.parametrize("text", DATA)
    def test_data_comes_back_to_the_letter(self, store: EngineUnderTest, text: str) -> None:
        """Payload, meta, checkpoint and result, on every way into the store and out of it."""
        worker = store.announce()
        alike = [store.spec(payload=text, meta=text) for _ in range(2)]
        mixed = [store.spec(payload=text, meta=text, priority=priority) for priority in (1, 2)]
        keyed = [store.spec(payload=text, meta=text, key="k"), store.spec(payload=text, meta=text, key="l")]
        replaced = [store.spec(payload=text, meta=text, key="k", key_mode="replace")]
        for specs in (alike[:1], alike[1:], mixed, keyed, replaced):
            store.engine.run(store.engine.enqueue_many(specs))

        leases = store.claim(worker)
        assert {(lease.payload, lease.meta) for lease in leases} == {(text, text)}
        assert {(job.payload, job.meta) for job in store.find()} == {(text, text)}
        first, second = leases[:2]
        store.report(worker, first, checkpoint=text)
        store.settle(worker, first, Ending.ERRORED)
        store.settle(worker, second, Ending.COMPLETED, result=text)
        assert [lease.checkpoint for lease in store.claim(worker)] == [text]
        assert store.job(second).result == text

    @pytest.mark.parametrize("text", DATA)
    def test_data_stands_in_nobodys_way(self, store: EngineUnderTest, text: str) -> None:
        """Jobs that have it can be filtered, retried and deleted, and so can those beside them."""
        worker = store.announce()
        job = store.enqueue(payload=text, meta=text, tags='["x"]', key="k")
        other = store.enqueue(payload='{"a":"1"}', tags='["x","y"]')

        assert numbers(store, JobFilter(tag="x")) == [other.number, job.number]
        assert numbers(store, JobFilter(tag="y", args=(("a", "1"),))) == [other.number]
        for lease in store.claim(worker):
            error = fit(text, 1_000) if lease.id == job.id else "another"
            store.settle(worker, lease, Ending.FAILED, error=error)
        assert numbers(store, JobFilter(error=fit(text, 1_000))) == [job.number]
        store.retry(job)
        assert store.job(job).payload == text
        assert store.delete(JobFilter(state=State.FAILED)) == 1

    @pytest.mark.parametrize("text", NAMES)
    def test_names_are_found_again_by_the_letter(self, store: EngineUnderTest, text: str) -> None:
        app = Shigoto(engine=store.engine)
        worker = store.announce(name=text)
        options: CallOptions = {"key": text, "tenant": text, "tags": [text]}
        handle = app.enqueue_by_name("work", {}, allow_unknown=True, **options)
        app.enqueue_by_name(
            "work", {}, allow_unknown=True, key=f"{text}.", tenant=f".{text}", tags=[f"{text}."]
        )

        assert [job.id for job in app.find(key=text)] == [handle.id]
        assert [job.id for job in app.find(tenant=text)] == [handle.id]
        assert [job.id for job in app.find(tag=text)] == [handle.id]
        assert app.enqueue_by_name("work", {}, allow_unknown=True, **options).id == handle.id
        assert len(store.claim(worker)) == 2
        assert len(app.find(worker=text)) == 2

    @pytest.mark.parametrize("option", ["key", "tenant", "tags"])
    @pytest.mark.parametrize("text", ["a\0b", "\0", "a\ud800"])
    def test_names_that_not_every_store_could_hold_are_refused_by_all(
        self, store: EngineUnderTest, option: str, text: str
    ) -> None:
        app = Shigoto(engine=store.engine)
        said: Any = [text] if option == "tags" else text
        filters: Any = {option.removesuffix("s"): text}
        words = "half of a surrogate pair" if "\ud800" in text else r"has U\+0000 in it"

        with pytest.raises(OptionInvalid, match=words):
            app.enqueue_by_name("work", {}, allow_unknown=True, **{option: said})
        with pytest.raises(OptionInvalid, match=words):
            app.find(**filters)
        assert store.find() == []

    @pytest.mark.parametrize("text", WORDS)
    def test_what_describes_is_kept_as_far_as_every_store_can_hold_it(
        self, store: EngineUnderTest, text: str
    ) -> None:
        worker = store.announce()
        lease = store.start(worker)
        said, line = fit(text, 1_000), spelt_out(text)
        tail = LogTail(first=1, lines=(LogLine(1, store.clock.now, line, line),))

        store.report(worker, lease, progress_text=said, log=tail)
        store.settle(worker, lease, Ending.FAILED, error=said, traceback=said)

        [attempt] = store.engine.run(store.engine.attempts(lease.id))
        [logged] = store.engine.run(store.engine.logs(lease.id))
        job = store.job(lease)
        assert (attempt.error, attempt.traceback, job.error, job.progress_text) == (said, said, said, said)
        assert (logged.level, logged.text) == (line, line)
        assert numbers(store, JobFilter(error=said)) == [lease.number]
        assert not {"\0", "\ud800"} & {*said, *line}
