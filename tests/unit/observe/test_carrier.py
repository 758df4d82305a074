"""The trace of a job in its `meta`: what is written there, and what is read from there."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shigoto.model.ids import uuid7
from shigoto.model.job import MAX_META, JobSpec
from shigoto.observe.tracing import Carrier, carried, read, stamped, without, written

HERE = Carrier(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, sampled=True)
TEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_trace_is_written_as_w3c_says_and_read_again() -> None:
    assert str(HERE) == TEXT
    assert read(TEXT) == HERE
    assert read(TEXT, "vendor=1").state == "vendor=1"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "parent",
    [
        None,
        7,
        "",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        TEXT.upper(),
        f"ff{TEXT[2:]}",
        f"{TEXT}-more",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        f" {TEXT}",
        f"{TEXT}\n",
    ],
)
def test_what_is_no_trace_is_none(parent: object) -> None:
    assert read(parent) is None


def test_a_later_version_may_say_more() -> None:
    assert read(f"01{TEXT[2:]}-more") == HERE


@pytest.mark.parametrize("state", [7, "", "a" * 513, "line\nbreak", "ü"])
def test_a_state_that_cannot_be_one_is_left_out(state: object) -> None:
    assert read(TEXT, state) == HERE


@pytest.mark.parametrize(
    "meta", [None, "{}", "[]", "no json", '"traceparent"', '{"traceparent": 7}', '{"x":"y"}']
)
def test_a_meta_without_a_trace_has_none(meta: str | None) -> None:
    assert carried(meta) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values), st.booleans())
def test_whatever_users_say_in_meta_stays_and_the_trace_is_beside_it(
    meta: dict[str, object], spaced: bool
) -> None:
    text = json.dumps(meta, indent=1 if spaced else None)
    marked = written(text, replace(HERE, state='a="b\\c"'))

    assert marked is not None
    told = json.loads(marked)
    if "traceparent" in meta:
        assert marked == text
    else:
        assert told == meta | {"traceparent": TEXT, "tracestate": told["tracestate"]}
        assert carried(marked) == replace(HERE, state='a="b\\c"')
        without_state = {name: value for name, value in meta.items() if name != "tracestate"}
        assert json.loads(without(marked) or "{}") == without_state


def test_a_trace_of_the_users_own_is_kept() -> None:
    own = '{"traceparent":"00-11111111111111111111111111111111-2222222222222222-01"}'

    assert written(own, HERE) == own


def test_a_meta_that_is_full_goes_without_the_state_and_then_without_the_trace() -> None:
    state = replace(HERE, state="s" * 500)
    room = len(f',"traceparent":"{TEXT}"')
    full = json.dumps({"x": "y" * (MAX_META - 8)}, separators=(",", ":"))
    nearly = json.dumps({"x": "y" * (MAX_META - 8 - room)}, separators=(",", ":"))

    assert written(full, state) == full
    assert carried(written(nearly, state)) == HERE
    assert len((written(nearly, state) or "").encode()) == MAX_META


def test_jobs_of_one_call_site_still_name_one_pattern() -> None:
    """Engines write those together; but a job that names no template is on its own."""
    template = JobSpec(id=uuid7(), payload="{}", task="greet", queue="default", meta='{"a":1}')
    alike = [replace(template, id=uuid7(), payload=f'{{"n":{n}}}', template=template) for n in range(3)]
    marked = stamped([*alike, template], HERE)

    assert {id(spec.template) for spec in marked[:3]} == {id(marked[0].template)}
    assert marked[3].template is None
    for spec, plain in zip(marked, [*alike, template], strict=True):
        assert spec.meta == f'{{"a":1,"traceparent":"{TEXT}"}}'
        assert replace(spec, meta=plain.meta, template=plain.template) == plain
    assert isinstance(marked[0].template, JobSpec)
    assert marked[0].template.meta == marked[0].meta


def test_a_rerun_has_nothing_of_the_old_trace() -> None:
    assert without(None) is None
    assert without('{"a":1}') == '{"a":1}'
    assert without(f'{{"traceparent":"{TEXT}"}}') is None
