"""The filter language: what it understands, what it refuses and how it says so, and that it says all it reads."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shigoto import FailureKind, OptionInvalid, State
from shigoto.filters import (
    QUALIFIERS,
    Filters,
    KindName,
    is_term,
    parse_filter,
    together,
    wanted,
    words_of,
    write_filter,
)
from shigoto.model.job import JobFilter
from shigoto.model.time import read_duration, write_duration

HOUR = 3_600_000
NOW = 1_777_982_400_000


def refused(filter: Any) -> str:
    with pytest.raises(OptionInvalid) as caught:
        parse_filter(filter)
    return str(caught.value)


def test_one_line_says_which_jobs_are_meant() -> None:
    said = parse_filter(
        'state:failed queue:mail task:send tag:vip key:"a b" tenant:acme worker:web-1 kind:crash_loop'
        " error:'connection refused' since:2h args.store:7 args.user.name:Ada"
    )

    assert said == {
        "state": State.FAILED,
        "queue": "mail",
        "task": "send",
        "tag": "vip",
        "key": "a b",
        "tenant": "acme",
        "worker": "web-1",
        "failure_kind": FailureKind.CRASH_LOOP,
        "error": "connection refused",
        "since": timedelta(hours=2),
        "args": {"store": "7", "user.name": "Ada"},
    }


@pytest.mark.parametrize("filter", ["", "  \n", []])
def test_nothing_said_is_nothing_asked(filter: str | list[str]) -> None:
    assert parse_filter(filter) == {}


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("failed", State.FAILED),
        ("state:running", State.PROCESSING),
        ("waiting", State.PENDING),
        ("scheduled", "scheduled"),
        ("all", "all"),
        ("state:all", "all"),
    ],
)
def test_a_state_may_stand_by_itself_and_has_all_its_names(text: str, state: object) -> None:
    assert parse_filter(text) == {"state": state}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('key:"a b"', "a b"),
        ("key:'a b'", "a b"),
        (r'key:"say \"hi\""', 'say "hi"'),
        (r'key:"back\\slash"', "back\\slash"),
        (r'key:"C:\temp"', "C:\\temp"),
        (r"key:'\'", "\\"),
        ("key:don't", "don't"),
        ("key:a:b:c", "a:b:c"),
        ('key:""', ""),
        ("key:'仕事 です'", "仕事 です"),
        ('key:"two\nlines"', "two\nlines"),
    ],
)
def test_a_value_may_be_quoted(text: str, value: str) -> None:
    assert parse_filter(f"failed {text} queue:q") == {"state": State.FAILED, "key": value, "queue": "q"}


def test_a_word_of_a_command_line_is_one_term_blanks_and_all() -> None:
    """The shell has taken the quotes away."""
    assert parse_filter(["failed", "key:a b", "error:can't connect"]) == {
        "state": State.FAILED,
        "key": "a b",
        "error": "can't connect",
    }
    assert parse_filter(['key:"a b"']) == {"key": "a b"}


@pytest.mark.parametrize("word", ["state:failed queue:mail", "error:refused args.store:7"])
def test_several_terms_in_one_word_of_a_command_line_are_no_value(word: str) -> None:
    assert "This looks like several terms in one word" in refused([word])


def test_names_with_blanks_are_quoted_in_paths_too() -> None:
    assert parse_filter("""args."first name":Ada args.'a:b'.c:1""".replace("'a:b'.c", '"a:b.c"')) == {
        "args": {"first name": "Ada", "a:b.c": "1"}
    }


@pytest.mark.parametrize(
    ("text", "since"),
    [
        ("90", timedelta(seconds=90)),
        ("90s", timedelta(seconds=90)),
        ("0.5s", timedelta(milliseconds=500)),
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
        ("2w", timedelta(weeks=2)),
        ("2030-01-31", datetime(2030, 1, 31, tzinfo=UTC)),
        ("2030-01-31T09:00:00Z", datetime(2030, 1, 31, 9, tzinfo=UTC)),
        ("2030-01-31T18:00+09:00", datetime(2030, 1, 31, 9, tzinfo=UTC)),
    ],
)
def test_since_is_how_long_ago_or_a_moment_or_a_day(text: str, since: object) -> None:
    assert parse_filter(f"since:{text}") == {"since": since}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stat:failed", "There is no filter 'stat'. Did you mean 'state'? Filters are: state:, queue:, "),
        ("state.x:failed", "There is no filter 'state.x'."),
        (":x", "There is no filter ''."),
        ("faild", "There is no state 'faild'. Did you mean 'failed'? States are: pending, "),
        ("state:done", "There is no state 'done'."),
        ("kind:timout", "There is no kind of failure 'timout'. Did you mean 'timeout'?"),
        ("queue:", 'There is no value after the colon; "" is the empty one.'),
        ("args:7", "args needs the name of an argument: write args.NAME:VALUE."),
        (
            "args.a..b:7",
            "The path of an argument is its name, and names inside of it after dots, not 'a..b'.",
        ),
        ('key:"a b', 'The quote " is never closed.'),
        ("key:'a b", "The quote ' is never closed."),
        ('key:"a"b', "After the closing quote comes 'b'"),
        ("since:yesterday", "since takes how long ago jobs were stored (90, 90s, 5m, 2h, 1d or 2w), a day"),
        ("since:2030-02-31", "since takes how long ago"),
        ("since:-5m", "since takes how long ago"),
        ("since:200000w", "since is longer than a hundred years"),
        ("since:2030-01-31T09:00:00", "since has no time zone"),
    ],
)
def test_an_error_names_the_term_and_suggests(text: str, message: str) -> None:
    told = refused(f"task:send {text}")

    assert message in told
    assert f"(In term 2: {words_of(text)[0]!r}" in told.replace('\\"', '"')


@pytest.mark.parametrize("text", ["queue:a queue:a", "failed state:failed", "args.a:1 args.a:2"])
def test_nothing_is_said_twice(text: str) -> None:
    told = refused(text)

    assert "twice" in told
    assert "(In term 2:" in told


@pytest.mark.parametrize("filter", [5, None, [5], ["queue:\ud800"], "queue:\ud800", "q" * 10_001, [""]])
def test_what_is_no_text_is_refused(filter: Any) -> None:
    assert refused(filter)


def test_a_text_and_single_filters_are_taken_together() -> None:
    assert together("failed args.a:1", {"queue": "mail", "args": {"b": 2}, "limit": 5}) == {
        "state": State.FAILED,
        "args": {"a": "1", "b": 2},
        "queue": "mail",
        "limit": 5,
    }
    with pytest.raises(OptionInvalid, match="The filter says queue twice"):
        together("queue:a", {"queue": "b"})


@pytest.mark.parametrize("value", [7, "5", None])
def test_an_argument_is_not_said_in_a_text_and_by_itself(value: Any) -> None:
    with pytest.raises(
        OptionInvalid, match=r"The filter says args\.user\.id twice: as a term, and by itself"
    ):
        together("args.user.id:5 args.x:1", {"args": {"y": 2, "user.id": value}})


def test_what_is_none_was_not_given() -> None:
    assert wanted(
        together("queue:a args.x:1 kind:error", {"queue": None, "args": None, "failure_kind": None})
    ) == (wanted({"queue": "a", "args": {"x": "1"}, "failure_kind": "error"}))


@pytest.mark.parametrize("text", ["", "args.x:1"])
@pytest.mark.parametrize("args", ["x", 5, [("x", 1)], []])
def test_arguments_that_are_no_mapping_are_refused(text: str, args: Any) -> None:
    with pytest.raises(OptionInvalid, match="args takes paths and values"):
        wanted(together(text, {"args": args}))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("queue:mail", True),
        ("args.x:1", True),
        ('args."a b":1', True),
        ("failed", True),
        ("all", True),
        ("stat:failed", True),
        ("queue:/srv/mail", True),
        ("jobs.db", False),
        ("mail", False),
        ("sqlite:///jobs.db", False),
        ("sqlite:jobs.db", False),
        ("memory:", False),
        ("postgresql://host/base", False),
        ("c:\\jobs", False),
    ],
)
def test_a_term_is_told_from_the_address_of_a_store(word: str, expected: bool) -> None:
    assert is_term(word) is expected


# What it means in the store's words


def test_a_filter_is_dated_when_it_is_used() -> None:
    def meant(text: str) -> JobFilter:
        return wanted(parse_filter(text), lambda: NOW)

    assert meant("since:2h").since == NOW - 2 * HOUR
    assert meant("since:100w").since == NOW - 100 * 7 * 24 * HOUR
    assert meant("since:1970-01-02").since == 24 * HOUR
    assert wanted({"since": timedelta(days=36_000)}, lambda: NOW).since == 0
    assert meant("all").state is None
    assert meant("kind:timeout").state is State.FAILED


def test_an_argument_is_compared_by_its_text() -> None:
    def text_of(value: Any) -> str:
        [(_, text)] = wanted({"args": {"a.b": value}}).args
        return text

    assert [text_of(value) for value in ("7", 7, 7.5, True, False, None, -0.0, 1e300, "é")] == [
        "7",
        "7",
        "7.5",
        "true",
        "false",
        "null",
        "-0.0",
        "1e300",
        "é",
    ]


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"args": 5}, 'args takes paths and values, such as {"store": 7}, not 5.'),
        ({"args": {"": 1}}, "The path of an argument is its name"),
        ({"args": {"a.": 1}}, "The path of an argument is its name"),
        ({"args": {5: 1}}, "The path of an argument is its name"),
        ({"args": {"a\ud800": 1}}, "is not valid text"),
        ({"args": {"a": "\ud800"}}, "The argument a is not valid text"),
        ({"args": {"a": [1]}}, "The argument a is compared with a string, a number, true, false or null"),
        ({"args": {"a": float("nan")}}, "The argument a is compared with"),
        ({"args": {"a": 10**5_000}}, "The argument a is compared with"),
        ({"since": 5}, "since takes a datetime"),
        ({"since": datetime.fromisoformat("2030-01-01")}, "since has no time zone"),
        ({"since": timedelta(seconds=-1)}, "since must not be negative"),
        ({"worker": 5}, "worker must be a string, not 5."),
        ({"error": b"x"}, "error must be a string"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused(filters: Any, message: str) -> None:
    with pytest.raises(OptionInvalid) as caught:
        wanted(filters)

    assert message in str(caught.value)


# Writing is the reverse of reading

TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12
) | st.sampled_from(["a b", '"', "'", "\\", '\\"', ":", "queue:mail", "仕事", "", " "])
PATHS = st.lists(TEXTS.filter(lambda name: bool(name) and "." not in name), min_size=1, max_size=3).map(
    ".".join
)
ZONES = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(
    lambda offset: timezone(timedelta(minutes=offset // timedelta(minutes=1)))
)
MOMENTS = st.datetimes(
    datetime.fromisoformat("1971-01-01"), datetime.fromisoformat("9998-01-01"), timezones=ZONES
)
LENGTHS = st.integers(0, 100 * 365 * 86_400_000).map(lambda millis: timedelta(milliseconds=millis))


def filters_of(fields: dict[str, Any]) -> Filters:
    return cast("Filters", fields)


FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "state": st.sampled_from([*State, "scheduled", "retrying", "all"]),
        **dict.fromkeys(("queue", "task", "tag", "key", "tenant", "worker", "error"), TEXTS),
        "failure_kind": st.sampled_from(FailureKind),
        "since": LENGTHS | MOMENTS,
        "args": st.dictionaries(PATHS, TEXTS, min_size=1, max_size=3),
    },
).map(filters_of)


@given(FILTERS)
def test_what_is_written_is_read_back_as_it_was(filters: Filters) -> None:
    assert parse_filter(write_filter(filters)) == filters


@given(
    st.text(max_size=40)
    | st.lists(st.sampled_from([*QUALIFIERS, ":", '"', "'", "\\", " ", "args.", "x"])).map("".join)
)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        filters = parse_filter(text)
    except OptionInvalid:
        return

    assert parse_filter(write_filter(filters)) == filters


def test_pages_and_what_was_not_given_have_no_words() -> None:
    assert write_filter({"queue": "mail", "key": None, "limit": 5, "before": 9, "args": None}) == "queue:mail"
    assert write_filter({"args": {"a": None, "b": True, "c": 1.5}}) == "args.a:null args.b:true args.c:1.5"


@given(LENGTHS)
def test_a_duration_is_written_as_it_is_read(length: timedelta) -> None:
    assert read_duration(write_duration(length)) == length


@pytest.mark.parametrize("text", ["", "5 minutes", "-5", "5y", "1e3", "٥", "5" * 13, "nan"])
def test_a_text_that_is_no_duration_is_none(text: str) -> None:
    assert read_duration(text) is None


def test_every_kind_of_failure_has_its_name_in_the_types() -> None:
    assert set(get_args(KindName)) == {kind.value for kind in FailureKind}
