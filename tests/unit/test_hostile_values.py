"""Values whose own methods lie or raise: at the door they become plain ones, or are refused in our words."""

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import msgspec
import pytest

from shigoto import OptionInvalid, PayloadInvalid, Retry, ShigotoError, Task, Tasks
from shigoto.bulk import choose_plan, page_and_limit
from shigoto.context import JobLog
from shigoto.filters import parse_id, parse_state, together, wanted
from shigoto.model.job import FailureKind, State
from shigoto.model.text import fit
from shigoto.worker import Worker
from tests.unit.shop import Shop, opened_shop

PLAIN = (str, int, float, bool, type(None), UUID, State, FailureKind)


def _lie(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a method of the value itself was asked")


class SlyText(str):
    """A string that must not be asked anything."""

    __str__ = __len__ = __eq__ = __hash__ = __getitem__ = __contains__ = _lie
    encode = split = strip = replace = upper = lower = isalpha = isascii = startswith = splitlines = _lie


class SlyName(str):
    """A string that says it is another one."""

    def __str__(self) -> str:
        return "other\x1b[31m"

    def encode(self, *_: Any) -> bytes:
        return b"\xff\xfe"


class SlyInt(int):
    """A number that must not be asked anything."""

    __int__ = __index__ = __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __mul__ = __hash__ = _lie


class SlyFloat(float):
    """A number that must not be asked anything."""

    __float__ = __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __mul__ = __hash__ = __round__ = _lie


class SlyId(UUID):
    """An id that says it is another one."""

    def __str__(self) -> str:
        return "other"

    @property
    def bytes(self) -> bytes:
        return b"other"


class SlyMoment(datetime):
    """A moment that must not be asked anything."""

    utcoffset = isoformat = __sub__ = __eq__ = __hash__ = _lie


class SlySpan(timedelta):
    """A time that must not be asked anything."""

    total_seconds = __eq__ = __bool__ = __hash__ = _lie


class Ghost:
    """An object that answers nothing without an error."""

    __repr__ = __str__ = __eq__ = __hash__ = __len__ = __bool__ = _lie


ID = UUID(int=7)
OPTIONS: dict[str, list[Any]] = {
    "queue": [SlyText("mail"), SlyName("mail")],
    "priority": [SlyInt(5)],
    "delay": [SlyInt(60), SlyFloat(1.5), SlySpan(seconds=60)],
    "run_at": [SlyMoment(2030, 1, 1, tzinfo=UTC)],
    "expires": [SlyInt(60), SlySpan(seconds=60), SlyMoment(2030, 1, 1, tzinfo=UTC)],
    "key": [SlyText("k"), SlyName("k")],
    "retries": [SlyInt(2)],
    "timeout": [SlyInt(60)],
    "soft_timeout": [SlyFloat(1.5)],
    "max_crashes": [SlyInt(2)],
    "tenant": [SlyText("t"), SlyName("t")],
    "tags": [[SlyText("a"), SlyText("b")], [SlyName("a")]],
    "meta": [{"a": SlyName("b")}],
    "id": [SlyId(int=7)],
    "on_error": [SlyText("log")],
}
FILTERS: dict[str, list[Any]] = {
    "state": [SlyText("failed"), SlyText("scheduled"), SlyText("waiting"), SlyText("all")],
    "queue": [SlyText("mail")],
    "task": [SlyText("price")],
    "tag": [SlyText("a")],
    "key": [SlyText("k")],
    "tenant": [SlyText("t")],
    "failure_kind": [SlyText("timeout")],
    "worker": [SlyText("w"), SlyId(int=7)],
    "error": [SlyText("x")],
    "since": [SlySpan(hours=1), SlyMoment(2024, 1, 1, tzinfo=UTC)],
    "args": [{"a.b": SlyText("x"), "c": SlyInt(1), "d": SlyFloat(1.5)}],
    "before": [SlyInt(9)],
    "limit": [SlyInt(9)],
}
NONSENSE: list[Callable[[], Any]] = [
    Ghost,
    lambda: [Ghost()],
    lambda: {"a": Ghost()},
    lambda: Mock(spec=str),
    lambda: Mock(spec=int),
    lambda: Mock(spec=UUID),
    lambda: Mock(spec=datetime),
    lambda: Mock(spec=timedelta),
]


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture(params=["memory", "sqlite"])
def any_shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    with opened_shop(str(request.param), tmp_path) as shop:
        yield shop


def expect_plain(value: Any) -> None:
    """Everything in it is of exactly the types that engines are written for."""
    for part in msgspec.structs.astuple(value) if isinstance(value, msgspec.Struct) else value:
        if type(part) is tuple:
            expect_plain(part)
        else:
            assert type(part) in PLAIN, (type(part), value)


def named(name: str = "work") -> Task[[], None]:
    tasks = Tasks()

    @tasks.task(name=name)
    def work() -> None:
        """Does nothing."""

    return work


@pytest.mark.parametrize("option", OPTIONS)
def test_what_an_option_takes_is_plain_in_the_job_that_engines_are_given(option: str) -> None:
    for value in OPTIONS[option]:
        given: Any = {option: value}
        expect_plain(named().using(**given).options.spec("work"))


def test_what_a_retry_policy_takes_is_plain_too() -> None:
    for policy in (
        Retry(retries=SlyInt(2)),
        Retry.attempts(SlyInt(3)),
        Retry.linear(minutes=5, retries=SlyInt(2)),
    ):
        assert Retry.load(policy.dump()).retries == 2
        expect_plain(named().using(retry=policy).options.spec("work"))


def test_a_plain_option_says_what_its_sly_form_holds() -> None:
    task = named(SlyName("work"))
    sly = task.using(queue=SlyText("mail"), priority=SlyInt(5), tags=[SlyText("a")], id=SlyId(int=7)).options

    assert (type(task.name), task.name) == (str, "work")
    assert (sly.queue, sly.priority, sly.tags, sly.id) == ("mail", 5, '["a"]', ID)
    assert sly.id is not None
    assert sly.id.bytes == ID.bytes


@pytest.mark.parametrize("name", FILTERS)
def test_what_a_filter_takes_is_plain_in_what_engines_look_for(name: str) -> None:
    for value in FILTERS[name]:
        given: Any = {name: value}
        expect_plain(wanted(together("", given)))


def test_plain_filters_say_what_their_sly_forms_hold() -> None:
    found = wanted({"args": {"a": SlyInt(1)}, "worker": SlyId(int=7), "limit": SlyInt(9)})

    assert (found.args, found.worker, found.limit) == ((("a", "1"),), str(ID), 9)
    assert parse_state(SlyText("retrying")) == "retrying"
    assert wanted({"args": {"a": True}}).args == (("a", "true"),)
    assert type(page_and_limit({"limit": SlyInt(9)})[1]) is int
    assert {type(parse_id(SlyText(ID))), type(parse_id(SlyId(int=7)))} == {UUID}


def test_a_job_is_stored_by_a_sly_name_under_the_name_that_it_holds(any_shop: Shop) -> None:
    """E49: what a subclass of str passed for, the engine could not write."""
    for name in (SlyName("elsewhere"), SlyText("elsewhere")):
        job = any_shop.app.enqueue_by_name(name, {"a": SlyName("b")}, allow_unknown=True).job()
        assert (job.task, job.payload) == ("elsewhere", '{"a":"b"}')
    handle = any_shop.app.enqueue_by_name(SlyText("price"), {SlyName("item"): "tea"}, id=SlyId(int=7))
    assert (handle.job().task, handle.id) == ("price", ID)
    assert [
        job.id for job in any_shop.app.find(task=SlyText("price"), args={SlyName("item"): SlyText("tea")})
    ] == [ID]
    assert any_shop.app.job(SlyId(int=7)).id == ID


@pytest.mark.parametrize("make", NONSENSE)
@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_refuses_what_answers_nothing_without_asking_it(shop: Shop, name: str, make: Any) -> None:
    """E49: whatever an object raises when it is compared, measured or shown."""
    filters: Any = {name: make()}
    for ask in (shop.app.find, shop.app.count, shop.app.cancel, shop.app.clear, shop.app.redrive):
        with pytest.raises(ShigotoError) as refused:
            ask(**filters)
        assert 10 < len(str(refused.value)) < 5_000


@pytest.mark.parametrize("make", NONSENSE)
@pytest.mark.parametrize("option", [name for name in OPTIONS if name != "meta"])
def test_an_option_refuses_what_answers_nothing_without_asking_it(shop: Shop, option: str, make: Any) -> None:
    options: Any = {option: make()}
    with pytest.raises(OptionInvalid):
        shop.price.using(**options)
    with pytest.raises(OptionInvalid):
        shop.app.enqueue_by_name("elsewhere", {}, allow_unknown=True, **options)


@pytest.mark.parametrize("make", NONSENSE)
def test_every_other_door_refuses_it_too(shop: Shop, make: Any) -> None:
    for door in (shop.app.job, shop.app.pause, shop.app.resume):
        with pytest.raises(OptionInvalid):
            door(make())
    with pytest.raises((OptionInvalid, PayloadInvalid)):
        shop.app.enqueue_by_name(make(), {})
    with pytest.raises(PayloadInvalid):
        shop.app.enqueue_by_name("elsewhere", {"a": make()}, allow_unknown=True)


@pytest.mark.parametrize("state", ["", 0, False, [], b""])
def test_an_empty_state_is_no_state_and_never_means_all_jobs(shop: Shop, state: Any) -> None:
    """A variable that is not set must not clear or cancel everything."""
    shop.price.enqueue("tea")
    for act in (shop.app.find, shop.app.clear, shop.app.cancel, shop.app.redrive):
        with pytest.raises(OptionInvalid):
            act(state=state)
    assert shop.app.count() == 1


def test_what_a_run_writes_down_is_plain() -> None:
    """One line that cannot be written would keep those of other runs from the store."""
    lines = JobLog()
    lines.add(1, SlyText("info"), SlyText("a\nb"))

    tail = lines.tail()
    assert tail is not None
    assert [(line.level, line.text) for line in tail.lines] == [("info", "a"), ("info", "b")]
    assert b'"info"' in msgspec.json.encode(tail)
    assert type(fit(SlyText("reason"), 100)) is str


def test_a_redrive_of_all_states_is_refused_whoever_says_all() -> None:
    given: Any = {"state": SlyText("all")}
    with pytest.raises(OptionInvalid, match="Only failed and cancelled"):
        choose_plan(Mock(), given, decoder=Mock())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (None, "null"),
        (10**400, f"1{'0' * 400}"),
        (-0.0, "-0.0"),
        (SlyFloat(1.5), "1.5"),
        (SlyInt(3), "3"),
    ],
    ids=["true", "null", "long", "zero", "float", "int"],
)
def test_an_argument_is_compared_with_the_json_of_a_plain_value(value: Any, text: str) -> None:
    assert wanted({"args": {"a": value}}).args == (("a", text),)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, 10**5_000, 1j, b"x"], ids=["nan", "inf", "long", "complex", "bytes"]
)
def test_an_argument_is_not_compared_with_what_json_has_not(value: Any) -> None:
    with pytest.raises(OptionInvalid, match="is compared with a string, a number, true, false or null"):
        wanted({"args": {"a": value}})


def test_a_worker_refuses_it_too(shop: Shop) -> None:
    some: list[Any] = [*(make() for make in NONSENSE), [], "mail", [1], ["No Name"]]
    names = ("concurrency", "threads", "children", "lease", "poll", "max_jobs")
    wrong: list[dict[str, Any]] = [{"queues": each} for each in some] + [{name: Ghost()} for name in names]
    for options in wrong:
        with pytest.raises(OptionInvalid):
            Worker(shop.app, **options)


def test_a_worker_takes_the_plain_form_of_its_options(shop: Shop) -> None:
    worker = Worker(shop.app, queues=[SlyName("mail")], concurrency=SlyInt(2), lease=SlyFloat(30))

    settings = worker._settings
    assert (settings.queues, settings.concurrency, settings.lease) == (("mail",), 2, 30.0)
    assert {type(settings.concurrency), type(settings.lease)} == {int, float}
