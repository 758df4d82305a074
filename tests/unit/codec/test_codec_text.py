"""JSON text has a limit of size and of depth, whatever it holds."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shigoto.codec import JSON, encode_json
from shigoto.codec.text import deeper_than
from shigoto.model.errors import PayloadInvalid, PayloadTooLarge
from tests.unit.codec.codec_samples import CYCLE, Node, nested, signature, taking


def test_nesting_is_limited_to_64_levels_with_the_payload_itself() -> None:
    """The payload is limited in depth."""
    task = taking(Any)

    assert task.decode(task.encode((nested(63),), {})) == {"value": nested(63)}
    with pytest.raises(PayloadInvalid, match="nested too deeply"):
        task.encode((nested(64),), {})


def test_many_brackets_side_by_side_or_in_text_are_not_depth() -> None:
    value = [[{"a": []}], "[[[" * 100, '{"\\"[[', "\\"] * 50

    assert taking(Any).decode(taking(Any).encode((value,), {})) == {"value": value}


def test_a_payload_over_the_limit_is_refused_with_both_numbers() -> None:
    """The payload is limited in size, counted in bytes of UTF-8."""

    def take(value: str) -> None: ...

    task = signature(take, max_bytes=20)

    assert task.encode(("éééé",), {}) == '{"value":"éééé"}'
    with pytest.raises(PayloadTooLarge) as refusal:
        task.encode(("é" * 5,), {})
    assert str(refusal.value) == (
        "task 'take': the arguments: 22 bytes of JSON are over the limit of 20; "
        "store the bulk elsewhere and pass a reference."
    )
    assert refusal.value.code == "JOB.PAYLOAD_TOO_LARGE"


@pytest.mark.parametrize("annotation", [Any, list[Any], list[list[Any]], JSON])
def test_a_value_that_contains_itself_is_refused(annotation: Any) -> None:
    with pytest.raises(PayloadInvalid, match="contains itself"):
        taking(annotation).encode((CYCLE,), {})


def test_an_object_that_contains_itself_is_refused() -> None:
    node = Node(1.0)
    node.below.append(node)

    with pytest.raises(PayloadInvalid, match=r"'value\.below\[0\]\.below.*…': nested too deeply"):
        taking(Node).encode((node,), {})


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


@given(
    st.recursive(
        st.text(alphabet='[]{}"\\\n,:é') | st.none(),
        lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text('[]"\\'), parts, max_size=3),
    ),
    st.integers(0, 6),
)
def test_the_depth_of_a_text_is_that_of_its_value(value: object, levels: int) -> None:
    assert deeper_than(msgspec.json.encode(value), levels) == (depth_of(value) > levels)


def test_encode_json_takes_json_types_only() -> None:
    """S0-5: what is enqueued by name is JSON too."""
    assert encode_json({"a": [1, None]}, what="meta", max_bytes=100, max_depth=3) == '{"a":[1,null]}'


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"a": (1,)}, "meta.a: tuple would arrive as something else"),
        ({"a": math.nan}, "meta.a: nan has no form in JSON"),
        ({1: 2}, "meta: the key 1 would arrive as a str"),
        ({"a": object()}, "meta.a: object would"),
        ([["\ud800"]], "meta[0][0]: the text has a lone surrogate"),
        ([[[[]]]], "meta[0][0][0]: nested too deeply"),
        (CYCLE, "meta[0][0][0]: nested too deeply, or a value that contains itself"),
        ([10**5000], "meta: ValueError: Exceeds the limit"),
    ],
)
def test_encode_json_refuses_everything_else(value: object, complaint: str) -> None:
    with pytest.raises(PayloadInvalid) as refusal:
        encode_json(value, what="meta", max_bytes=100, max_depth=3)

    assert str(refusal.value).startswith(complaint)


def test_encode_json_is_limited_in_size() -> None:
    with pytest.raises(PayloadTooLarge, match="meta: 102 bytes of JSON are over the limit of 100"):
        encode_json("x" * 100, what="meta", max_bytes=100, max_depth=3)
