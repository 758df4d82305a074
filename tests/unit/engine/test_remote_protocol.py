"""The record protocol's table: what goes over the line comes back as it was."""

import inspect
from contextlib import closing
from datetime import UTC, datetime
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import Struct
from msgspec.structs import fields

from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.engine.remote import RemoteEngine, protocol
from shigoto.model.errors import RequestInvalid
from shigoto.model.job import Job, JobFilter, JobSpec, Lease, State, View
from shigoto.model.worker import Ending, Settlement


def test_every_verb_of_the_protocol_is_in_the_table_and_all_else_in_the_engine() -> None:
    promised = {name: promise for name, promise in vars(Engine).items() if not name.startswith("_")}
    verbs = {
        name
        for name, promise in promised.items()
        if inspect.isfunction(promise) and get_origin(inspect.signature(promise).return_annotation) is Op
    }

    assert set(protocol.METHODS) == verbs
    assert set(protocol.VERBS) == {verb.name for verb in protocol.METHODS.values()} | {"hello"}
    assert set(promised) - verbs <= set(vars(RemoteEngine))


@pytest.mark.parametrize("name", protocol.METHODS)
def test_a_verb_is_asked_for_with_the_arguments_of_its_method_in_their_order(name: str) -> None:
    verb = protocol.METHODS[name]
    parameters = list(inspect.signature(getattr(Engine, name)).parameters.values())[1:]
    assert verb.names == tuple(each.name for each in parameters)
    assert len(get_args(verb.takes)) == len(parameters)

    asked = {each.name: (each.name,) for each in parameters if each.default is inspect.Parameter.empty}
    values = [list(asked[each.name]) if each.name in asked else each.default for each in parameters]
    assert protocol.arguments(verb, (), asked) == tuple(values)


def test_an_engine_behind_a_server_has_no_method_that_is_not_a_verb() -> None:
    with closing(RemoteEngine("http://127.0.0.1:1")) as engine:
        assert hasattr(engine, "declare")
        assert not hasattr(engine, "decree")


def test_arguments_and_values_of_every_verb_can_be_read() -> None:
    for name, verb in protocol.VERBS.items():
        with pytest.raises(RequestInvalid, match=name):
            protocol.decode_args(name, protocol.encode("nothing of the kind"))
        if verb.gives is type(None):
            assert protocol.decode_value(name, protocol.encode(None)) is None


TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
LEAVES: dict[Any, SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: TEXT,
    datetime: st.datetimes(timezones=st.just(UTC)),
    object: st.none(),  # the pattern of a spec, which means something in its own process only
}


def values_of(kind: Any) -> SearchStrategy[Any]:
    """Return the values of a type that the table of verbs names."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is protocol.Filter:
        return values_of(JobFilter)
    if isinstance(kind, type) and issubclass(kind, Struct):
        return st.builds(kind, **{field.name: values_of(field.type) for field in fields(kind)})
    if kind in LEAVES:
        return LEAVES[kind]
    if origin is Annotated:
        return values_of(parts[0])
    if origin in (Union, UnionType):
        return st.one_of([values_of(part) for part in parts])
    if origin is dict:
        return st.dictionaries(values_of(parts[0]), values_of(parts[1]), max_size=3)
    if origin is tuple and Ellipsis not in parts:
        return st.tuples(*[values_of(part) for part in parts])
    if origin in (list, tuple, frozenset):
        return st.lists(values_of(parts[0]), max_size=3).map(origin)
    return st.from_type(kind)


@pytest.mark.parametrize("name", protocol.VERBS)
@settings(max_examples=10)
@given(data=st.data())
def test_what_any_verb_takes_and_gives_comes_back_as_it_was(name: str, data: st.DataObject) -> None:
    verb = protocol.VERBS[name]
    args = data.draw(values_of(verb.takes))
    value = data.draw(values_of(verb.gives))

    assert protocol.decode_args(name, protocol.encode(args)) == args
    assert protocol.decode_value(name, protocol.encode(value)) == value


def test_a_filter_is_read_to_the_letter_with_states_and_views() -> None:
    for state in (*State, *get_args(View), None):
        wanted = JobFilter(state=state, queue="mail", args=(("a.b", "1"),), before=7, limit=3)
        (read,) = protocol.decode_args("find", protocol.encode((wanted,)))
        assert read == wanted
        assert type(read.state) is type(state)
    with pytest.raises(RequestInvalid):
        protocol.decode_args("find", protocol.encode(({"state": "lost"},)))


def test_specs_leases_settlements_and_jobs_come_back_as_they_were() -> None:
    spec = JobSpec(id=uuid4(), payload='{"a":"é\\u0000"}', task="t", queue="q", tenant="x", key="k")
    specs = protocol.plain([spec, JobSpec(id=uuid4(), payload="{}", task="t", queue="q", template=spec)])
    assert protocol.decode_args("enqueue_many", protocol.encode((specs,))) == (specs,)

    engine = MemoryEngine()
    engine.run(protocol.asked(engine, "enqueue_many", (specs,)))
    jobs: list[Job | None] = engine.run(protocol.asked(engine, "get", ([spec.id, uuid4()],)))
    assert protocol.decode_value("get", protocol.encode(jobs)) == jobs
    lease = Lease(1, 1, spec.id, "t", "q", 1, 0, 0, 6, 0, 5, 6, payload=spec.payload)
    assert protocol.decode_value("claim", protocol.encode([lease])) == [lease]
    settlement = Settlement(number=1, token=1, queue="q", ending=Ending.COMPLETED, result="1")
    worker = uuid4()
    assert protocol.decode_args("settle", protocol.encode((worker, [settlement]))) == (worker, [settlement])
