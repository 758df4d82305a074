"""Promises about filters by what stands in the payload."""

import pytest

from conformance.engine_under_test import EngineUnderTest
from conformance.filters import fail, numbers
from shigoto.model.job import JobFilter, State

DEEP = "[" * 300 + "]" * 300


class TestByArgs:
    """What stands in the payload."""

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ('"shop-1"', "shop-1"),
            ('""', ""),
            ('"7"', "7"),
            ("7", "7"),
            ("-7", "-7"),
            ("7.5", "7.5"),
            ("0.1", "0.1"),
            ("1e300", "1e300"),
            ("9007199254740993", "9007199254740993"),
            ("9223372036854775808", "9223372036854775808"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            ("true", "true"),
            ("false", "false"),
            ("null", "null"),
            ("[1,2]", "[1,2]"),
            ("[1, 2]", "[1,2]"),
            ('{"a": ["b"]}', '{"a":["b"]}'),
            ("[]", "[]"),
            ("{}", "{}"),
            ('"é"', "é"),
            ('"\\u00e9"', "é"),
            ('["\\u00e9"]', '["é"]'),
            ('"\\ud83d\\ude00"', "😀"),
            ('"a\\nb\\"c"', 'a\nb"c'),
            ('"a/b"', "a/b"),
            ('"a\\/b"', "a/b"),
            ('"\\u0000x"', "\0x"),
            ('"\'; DROP TABLE"', "'; DROP TABLE"),
        ],
    )
    def test_a_string_by_itself_and_anything_else_by_its_json(
        self, store: EngineUnderTest, value: str, text: str
    ) -> None:
        store.enqueue(payload="{}")
        job = store.enqueue(payload=f'{{"x": {value}, "y": [{value}]}}')

        assert numbers(store, JobFilter(args=(("x", text),))) == [job.number]
        assert numbers(store, JobFilter(args=(("x", text), ("x", text)), state=State.PENDING)) == [job.number]
        assert numbers(store, JobFilter(args=(("x", text + " "),))) == []

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("7", "7.0"),
            ("7.0", "7"),
            ("true", "1"),
            ("1", "true"),
            ("null", ""),
            ('"x"', '"x"'),
            ('"X"', "x"),
            ('"x%"', "x_"),
            ("[1,2]", "[2,1]"),
            ("9007199254740993", "9007199254740992"),
        ],
    )
    def test_what_is_only_alike_does_not_match(self, store: EngineUnderTest, value: str, text: str) -> None:
        store.enqueue(payload=f'{{"x":{value}}}')

        assert numbers(store, JobFilter(args=(("x", text),))) == []

    @pytest.mark.parametrize(
        "name",
        [
            "x",
            "",
            " ",
            '"',
            "'",
            '"x"',
            "[0]",
            "x[0]",
            "$",
            "$x",
            "é",
            "名前",
            "a b",
            "a-b",
            "a/b",
            "\\",
            "#",
            "*",
            "0",
        ],
    )
    def test_a_member_may_have_any_name(self, store: EngineUnderTest, name: str) -> None:
        written = name.replace("\\", "\\\\").replace('"', '\\"')
        escaped = "".join(f"\\u{ord(letter):04x}" for letter in name)
        plain = store.enqueue(payload=f'{{"{written}":7}}')
        coded = store.enqueue(payload=f'{{"{escaped}":{{"{escaped}":"v"}}}}')
        store.enqueue(payload='{"other":7,"xx":[7]}')

        assert numbers(store, JobFilter(args=((name, "7"),))) == [plain.number]
        assert numbers(store, JobFilter(args=((f"{name}.{name}", "v"),))) == [coded.number]

    def test_a_path_goes_through_objects(self, store: EngineUnderTest) -> None:
        job = store.enqueue(
            payload='{"user":{"address":{"city":"Kyoto"},"name":"x"},"list":[{"city":"Kyoto"}]}'
        )
        store.enqueue(payload='{"user":"Kyoto","city":"Kyoto"}')

        assert numbers(store, JobFilter(args=(("user.address.city", "Kyoto"),))) == [job.number]
        assert numbers(store, JobFilter(args=(("user.address", '{"city":"Kyoto"}'),))) == [job.number]

    @pytest.mark.parametrize(
        "path", ["", ".", "user.", ".user", "user.name.first", "list.0", "list.0.city", "list[0]", "$.user"]
    )
    def test_a_path_that_leads_nowhere_does_not_match(self, store: EngineUnderTest, path: str) -> None:
        store.enqueue(payload='{"user":{"name":"x"},"list":[{"city":"x"}],"none":null}')

        for text in ("x", "null", "", "{}"):
            assert numbers(store, JobFilter(args=((path, text),))) == []

    def test_a_dot_in_a_name_is_out_of_reach(self, store: EngineUnderTest) -> None:
        store.enqueue(payload='{"a.b":7}')

        assert numbers(store, JobFilter(args=(("a.b", "7"),))) == []

    def test_all_of_several_must_match(self, store: EngineUnderTest) -> None:
        both = store.enqueue(payload='{"a":1,"b":2}')
        store.enqueue(payload='{"a":1,"b":3}')

        assert numbers(store, JobFilter(args=(("a", "1"), ("b", "2")))) == [both.number]
        assert numbers(store, JobFilter(args=(("a", "1"), ("a", "2")))) == []

    def test_of_a_name_that_is_there_twice_the_last_counts(self, store: EngineUnderTest) -> None:
        job = store.enqueue(payload='{"a":1,"a":2}')

        assert numbers(store, JobFilter(args=(("a", "2"),))) == [job.number]
        assert numbers(store, JobFilter(args=(("a", "1"),))) == []

    @pytest.mark.parametrize(
        "payload",
        [
            "",
            "x",
            "null",
            "7",
            '"a"',
            "[1]",
            '{"a":',
            '{"a":1}}',
            '{"a":"\\ud800"}',
            "\u00e9",
            f'{{"a":{"[" * 9_000}',
        ],
    )
    def test_a_payload_that_cannot_be_read_does_not_match(self, store: EngineUnderTest, payload: str) -> None:
        store.enqueue(payload=payload)
        job = store.enqueue(payload='{"a":"1"}')

        assert numbers(store, JobFilter(args=(("a", "1"),))) == [job.number]

    def test_deep_values_do_not_stand_in_the_way(self, store: EngineUnderTest) -> None:
        deep = store.enqueue(payload=f'{{"deep":{DEEP},"a":"1"}}')
        path = ".".join("p" * 300)
        nested = store.enqueue(payload='{"p":' * 300 + "7" + "}" * 300)

        assert numbers(store, JobFilter(args=(("a", "1"),))) == [deep.number]
        assert numbers(store, JobFilter(args=(("deep", DEEP),))) == [deep.number]
        assert numbers(store, JobFilter(args=((path, "7"),))) == [nested.number]

    def test_in_pages_newest_first(self, store: EngineUnderTest) -> None:
        specs = [store.spec(payload=f'{{"n":{index % 3}}}') for index in range(1_200)]
        made = store.engine.run(store.engine.enqueue_many(specs))
        wanted = [job.number for index, job in enumerate(made) if index % 3 == 0][::-1]

        first = store.find(JobFilter(args=(("n", "0"),), limit=300))
        second = store.find(JobFilter(args=(("n", "0"),), limit=300, before=first[-1].number))

        assert [job.number for job in first] == wanted[:300]
        assert [job.number for job in second] == wanted[300:]
        assert store.count(JobFilter(args=(("n", "0"),), limit=1)) == 400

    def test_with_everything_else(self, store: EngineUnderTest) -> None:
        worker = store.announce(name="w")
        lease = store.start(worker, payload='{"a":1}', queue="q", tenant="t")
        failed = fail(store, "x", payload='{"a":1}')
        store.start(worker, payload='{"a":2}')

        assert numbers(store, JobFilter(args=(("a", "1"),), worker="w", queue="q")) == [lease.number]
        assert numbers(store, JobFilter(args=(("a", "1"),), error="x")) == [failed.number]
        assert numbers(store, JobFilter(args=(("a", "1"),), tenant="t")) == [lease.number]
