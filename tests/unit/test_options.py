"""Options: how they add up, and what is refused with which words."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import uuid4

import pytest
from msgspec import json

from shigoto import DeclarationError, OptionInvalid, Retry, Shigoto, Task, Tasks
from shigoto.engine.memory import MemoryEngine
from shigoto.model.time import to_millis
from shigoto.options import Options, TaskOptions, check_call_options
from shigoto.worker import Worker

NOON = datetime(2026, 5, 5, 12, tzinfo=UTC)


def app_with(defaults: TaskOptions | None = None) -> Shigoto:
    return Shigoto(engine=MemoryEngine(), defaults=defaults)


def a_task() -> Task[[], None]:
    @app_with().task
    def work() -> None: ...

    return work


def an_async_task() -> Any:
    @app_with().task
    async def work() -> None: ...

    return work


def refused(**options: Any) -> str:
    """The text of the refusal of such a `using`."""
    with pytest.raises(OptionInvalid) as caught:
        _ = a_task().using(**options).options
    return str(caught.value)


def test_nothing_said_means_the_documented_defaults() -> None:
    assert a_task().options == Options(
        queue="default", priority=0, retry=Retry(retries=5), max_crashes=3, timeout=None, expires_in=None
    )


def test_defaults_yield_to_the_app_the_app_to_the_task_and_the_task_to_using() -> None:
    app = app_with({"queue": "app", "priority": 1, "retries": 1, "expires": 10, "tags": ["app"]})

    @app.task(queue="task", priority=2, retries=2)
    def work() -> None: ...

    assert (app.options.queue, work.options.queue, work.using(queue="call").options.queue) == (
        "app",
        "task",
        "call",
    )
    assert work.using(priority=3).options.priority == 3
    assert work.options.retry.retries == 2
    assert work.options.expires_in == 10_000
    assert work.options.tags == '["app"]'


def test_retries_changes_the_number_and_keeps_the_policy_that_is_in_force() -> None:
    """S0-61"""
    app = app_with({"retry": Retry.linear(minutes=5)})

    @app.task(retries=7)
    def work() -> None: ...

    assert work.options.retry == Retry.linear(minutes=5, retries=7)
    assert work.using(retries=0).options.retry == Retry.linear(minutes=5, retries=0)
    assert work.using(retries=1).using(retry=Retry.never()).options.retry == Retry.never()
    assert work.using(retry=Retry.immediate()).using(retries=1).options.retry == Retry.immediate(retries=1)


def test_a_policy_given_for_one_call_is_stored_with_the_job_and_the_tasks_own_is_not() -> None:
    work = a_task()

    assert work.options.stored_retry is None
    assert work.using(delay=1).options.stored_retry is None
    assert work.using(retry=Retry.never()).options.stored_retry == Retry.never().dump()
    assert work.using(retries=2).options.stored_retry == Retry(retries=2).dump()


def test_retries_of_a_call_leave_a_policy_that_cannot_be_stored_with_the_task() -> None:
    @app_with().task(retry=Retry(on=OSError))
    def work() -> None: ...

    options = work.using(retries=1).options

    assert options.stored_retry is None
    assert options.retry.max_failures == 2


def test_later_words_win_over_earlier_ones() -> None:
    work = a_task()

    assert work.using(delay=1).using(run_at=NOON).options.delay == 0
    assert work.using(run_at=NOON).using(delay=1).options.run_at is None
    assert work.using(expires=NOON).using(expires=5).options.expires_at is None
    assert work.using(key="a").using(key=None).options.key is None


def test_durations_are_timedeltas_or_seconds_and_instants_are_aware() -> None:
    """S0-61, S3-21"""
    work = a_task()

    assert work.using(delay=timedelta(hours=1)).options.delay == 3_600_000
    assert work.using(delay=0.25).options.delay == 250
    assert work.using(run_at=NOON).options.run_at == to_millis(NOON)
    assert work.using(expires=timedelta(days=1)).options.expires_in == 86_400_000
    assert work.using(expires=NOON).options.expires_at == to_millis(NOON)
    assert an_async_task().using(timeout=1.5).options.timeout == 1_500


def test_an_option_that_is_misspelt_is_refused_with_a_suggestion() -> None:
    assert refused(dely=1) == "task 'work' has no option 'dely'. Did you mean 'delay'?"
    misspelt: Any = {"que": "mail"}
    with pytest.raises(OptionInvalid, match=r"task 'work' has no option 'que'\. Did you mean 'queue'\?"):
        app_with().task(**misspelt)(a_task().fn)
    with pytest.raises(OptionInvalid, match=r"Shigoto\(defaults=…\) has no option 'que'"):
        app_with(misspelt)


def test_options_that_contradict_each_other_are_refused() -> None:
    assert "both delay and run_at" in refused(delay=1, run_at=NOON)
    assert "both retry and retries" in refused(retry=Retry(), retries=1)
    assert "needs a key=" in refused(key_mode="replace")
    assert "expire before it may start" in refused(delay=60, expires=60)
    assert "expire before it may start" in refused(run_at=NOON, expires=NOON)


def test_a_naive_datetime_is_refused() -> None:
    naive = datetime(2026, 5, 5)  # noqa: DTZ001

    assert "run_at has no time zone" in refused(run_at=naive)
    assert "expires has no time zone" in refused(expires=naive)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue": ""}, "The queue '' must be kebab-case"),
        ({"queue": "Mail Out"}, "How about 'mail_out'?"),
        ({"queue": "q" * 101}, "1 to 100"),
        ({"queue": 1}, "must be a string"),
        ({"priority": 32_768}, "priority must be a whole number from -32768 to 32767, not 32768"),
        ({"priority": True}, "not True"),
        ({"delay": -1}, "delay must not be negative"),
        ({"delay": float("inf")}, "delay must be a finite time"),
        ({"delay": "soon"}, "delay must be a timedelta or a number of seconds, not 'soon'"),
        ({"delay": timedelta(days=40_000)}, "longer than a hundred years"),
        ({"delay": 10**400}, "delay is longer than a hundred years"),
        ({"delay": 10**5000}, "delay is longer than a hundred years"),
        ({"expires": 10**400}, "expires is longer than a hundred years"),
        ({"priority": 10**5000}, "not int, which cannot be shown"),
        ({"run_at": datetime.fromisoformat("9999-12-31T23:59:59-12:00")}, "must be from 1970 to 9999 in UTC"),
        ({"run_at": datetime(1969, 12, 31, tzinfo=UTC)}, "run_at must be from 1970 to 9999 in UTC"),
        ({"expires": datetime.fromisoformat("0001-01-01T00:00:00+12:00")}, "expires must be from 1970"),
        ({"run_at": "tomorrow"}, "run_at takes a datetime with a time zone, not 'tomorrow'"),
        ({"key": ""}, "key must have 1 to 512 characters, and has 0"),
        ({"key": "k" * 513}, "and has 513"),
        ({"key": "k", "key_mode": "keeep"}, "not 'keeep'. Did you mean 'keep'?"),
        ({"retry": 3}, "retry takes a Retry, not 3. For a mere number there is retries=."),
        ({"retry": Retry(on=OSError)}, "give it to the task"),
        ({"retries": 1.5}, "retries must be a whole number"),
        ({"max_crashes": 0}, "max_crashes must be a whole number from 1"),
        ({"tenant": ""}, "tenant must have 1 to 100 characters"),
        ({"tags": "urgent"}, "write tags=['urgent']"),
        ({"tags": None}, "tags takes a list of strings, not None; [] is for none"),
        ({"tags": 5}, "tags takes a list of strings, not 5"),
        ({"tags": b"urgent"}, "tags takes a list of strings, not b'urgent'"),
        ({"tags": ["a\x00b"]}, "a tag has U+0000 in it"),
        ({"tags": ["a\x01b"]}, "a tag is one line of plain text, but 'a\\x01b' has a control character"),
        ({"tags": ["a\nb"]}, "has a control character"),
        ({"key": "k", "key_mode": ["keep"]}, "key_mode must be one of"),
        ({"tags": [""]}, "a tag must have 1 to 100 characters"),
        ({"tags": [str(number) for number in range(21)]}, "at most 20 tags"),
        ({"meta": [1]}, "meta takes a dict"),
        ({"meta": {"at": NOON}}, "meta"),
        ({"meta": {"text": "x" * 16_384}}, "meta"),
        ({"id": "42"}, "id takes a UUID"),
        ({"on_error": "ignore"}, "on_error must be one of raise, log"),
        ({"timeout": 0}, "timeout must be more than zero; leave it out, or say None, for no limit"),
        ({"soft_timeout": -1}, "soft_timeout must not be negative"),
        ({"soft_timeout": 5, "timeout": 5}, "soft_timeout (5 s) must be shorter than timeout (5 s)"),
        ({"executor": "process"}, "task 'work' has no option 'executor'"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_with_the_reason(options: dict[str, Any], text: str) -> None:
    assert text in refused(**options)


def test_a_subclass_of_str_counts_as_the_text_it_is() -> None:
    class Name(StrEnum):
        MAIL = "mail"

    options = (
        a_task().using(queue=Name.MAIL, key=Name.MAIL, tenant=Name.MAIL, tags=[Name.MAIL, "mail"]).options
    )

    assert (options.queue, options.key, options.tenant, options.tags) == ("mail", "mail", "mail", '["mail"]')
    assert {type(options.queue), type(options.key), type(options.tenant)} == {str}


def test_values_at_the_limits_are_accepted() -> None:
    work = a_task()
    identity = uuid4()

    options = work.using(
        queue="q" * 100,
        priority=-32_768,
        key="k" * 512,
        retries=10_000,
        tags=["t" * 100, *map(str, range(19)), "0"],
        meta={"text": "x" * 16_000},
        delay=timedelta(days=36_500),
        id=identity,
        tenant="shop",
        max_crashes=None,
    ).options

    assert options.priority == -32_768
    assert len(json.decode(options.tags or "")) == 20
    assert (options.id, options.tenant, options.max_crashes) == (identity, "shop", None)


def test_a_time_limit_of_the_app_holds_until_it_is_lifted() -> None:
    app = app_with({"timeout": 60, "soft_timeout": 50})

    @app.task
    async def limited() -> None: ...

    @app.task(timeout=None, soft_timeout=None)
    def unlimited() -> None: ...

    assert (limited.options.timeout, limited.options.soft_timeout) == (60_000, 50_000)
    assert (unlimited.options.timeout, unlimited.options.soft_timeout) == (None, None)
    assert unlimited.executor == "thread"


def test_only_what_a_call_says_of_its_limits_is_stored_with_the_job() -> None:
    """The rest is left to the worker's own task, so that a new limit holds for jobs that wait already."""

    @app_with().task(timeout=60, soft_timeout=50)
    async def work() -> None: ...

    def stored(task: Task[[], Any]) -> tuple[int | None, int | None]:
        spec = task.options.spec("work")
        return spec.timeout, spec.soft_timeout

    assert stored(work) == (None, None)
    assert stored(work.using(delay=1)) == (None, None)
    assert stored(work.using(timeout=55.5)) == (55_500, None)
    assert stored(work.using(soft_timeout=timedelta(seconds=1))) == (None, 1_000)
    assert stored(work.using(timeout=None, soft_timeout=None)) == (0, 0)
    assert stored(work.using(timeout=None).using(timeout=51)) == (51_000, None)


def test_a_soft_limit_comes_before_the_hard_one_wherever_the_two_come_from() -> None:
    with pytest.raises(
        OptionInvalid, match=r"defaults=…\): soft_timeout \(7 s\) must be shorter than timeout"
    ):
        app_with({"soft_timeout": 7, "timeout": 7})

    app = app_with({"soft_timeout": 30})
    with pytest.raises(OptionInvalid, match=r"task 'work': soft_timeout \(30 s\) .* timeout \(20 s\)"):

        @app.task(timeout=20)
        async def work() -> None: ...

    @app.task(timeout=40)
    async def fits() -> None: ...

    assert fits.using(timeout=None).options.timeout == 0
    with pytest.raises(OptionInvalid, match=r"task 'fits': soft_timeout \(30 s\) .* timeout \(10 s\)"):
        _ = fits.using(timeout=10).options
    with pytest.raises(OptionInvalid, match=r"soft_timeout \(45 s\) .* timeout \(40 s\)"):
        fits.using(soft_timeout=45).enqueue()


class TestExecutor:
    """Where a task runs: as its function needs it, unless it says so itself."""

    def test_the_function_decides_if_nothing_is_said(self) -> None:
        app = app_with()

        @app.task
        async def coroutine() -> None: ...

        @app.task
        def plain() -> None: ...

        assert (coroutine.executor, plain.executor) == ("loop", "thread")

    @pytest.mark.parametrize("limits_of_the_app", [False, True])
    def test_a_function_that_is_not_async_has_a_process_if_it_has_a_time_limit(
        self, limits_of_the_app: bool
    ) -> None:
        app = app_with({"timeout": 60} if limits_of_the_app else None)
        own: Any = {} if limits_of_the_app else {"timeout": 60}

        @app.task(**own)
        def plain() -> None: ...

        @app.task(**own)
        async def coroutine() -> None: ...

        assert (plain.executor, coroutine.executor) == ("process", "loop")

    def test_a_soft_limit_alone_leaves_it_in_its_thread(self) -> None:
        @app_with().task(soft_timeout=5)
        def plain() -> None: ...

        assert plain.executor == "thread"

    def test_both_kinds_may_be_given_a_process(self) -> None:
        app = app_with({"executor": "process"})

        @app.task
        def plain() -> None: ...

        @app.task(executor="loop")
        async def on_the_loop() -> None: ...

        @app.task
        async def coroutine() -> None: ...

        assert (plain.executor, coroutine.executor, on_the_loop.executor) == ("process", "process", "loop")

    def test_a_task_of_a_collection_follows_the_app_it_comes_to(self) -> None:
        tasks = Tasks()

        @tasks.task
        def plain() -> None: ...

        before: str = plain.executor
        app_with({"timeout": 60}).include(tasks)

        assert (before, plain.executor) == ("thread", "process")

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (
                {"executor": "loop"},
                "task 'plain': executor='loop' is for async functions, .* or say 'thread'",
            ),
            (
                {"executor": "thread", "timeout": 5},
                "task 'plain': a timeout cannot stop .* executor='process'",
            ),
            (
                {"exclusive": True},
                "task 'plain': exclusive=True .* a thread cannot be stopped. Say executor='pr",
            ),
        ],
    )
    def test_what_a_plain_function_cannot_have_is_refused_where_it_is_declared(
        self, options: Any, text: str
    ) -> None:
        with pytest.raises(DeclarationError, match=text):

            @app_with().task(**options)
            def plain() -> None: ...

    def test_an_async_function_cannot_run_in_a_thread(self) -> None:
        with pytest.raises(DeclarationError, match="executor='thread' is for functions that are not async"):

            @app_with().task(executor="thread")
            async def coroutine() -> None: ...

    def test_a_default_of_the_app_that_a_task_cannot_have_is_refused_too(self) -> None:
        app = app_with({"timeout": 60})
        with pytest.raises(DeclarationError, match="a timeout cannot stop what runs in a thread"):

            @app.task(executor="thread")
            def plain() -> None: ...

        tasks = Tasks()

        @tasks.task(executor="thread")
        def declared_before() -> None: ...

        with pytest.raises(DeclarationError, match="task 'declared_before': a timeout cannot stop"):
            app.include(tasks)

    def test_what_stops_with_the_lease_runs_where_it_can_be_stopped(self) -> None:
        app = app_with({"exclusive": True})

        @app.task
        async def coroutine() -> None: ...

        @app.task(executor="process")
        def plain() -> None: ...

        assert (coroutine.options.exclusive, plain.options.exclusive) == (True, True)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"executor": "fiber"}, "executor must be one of loop, thread, process, not 'fiber'"),
            ({"exclusive": 1}, "exclusive is True or False, not 1"),
        ],
    )
    def test_a_word_that_is_none_of_them_is_refused(self, options: Any, text: str) -> None:
        with pytest.raises(OptionInvalid, match=text):
            app_with().task(**options)(a_task().fn)

        with pytest.raises(OptionInvalid, match=text):
            app_with(options)


class TestLimitOfOneCall:
    """A time limit for one job of a task that runs in a thread gives this job a process of its own."""

    def test_a_job_with_a_limit_asks_to_be_alone(self) -> None:
        work = a_task()

        assert work.using(timeout=5).options.spec("work").alone
        assert not work.using(soft_timeout=5).options.spec("work").alone
        assert not work.using(timeout=5).using(timeout=None).options.spec("work").alone

    def test_where_runs_can_be_stopped_it_does_not(self) -> None:
        @app_with().task(executor="process")
        def plain() -> None: ...

        assert not an_async_task().using(timeout=5).options.spec("work").alone
        assert not plain.using(timeout=5).options.spec("plain").alone

    def test_a_task_that_insists_on_its_thread_can_have_no_limit(self) -> None:
        @app_with().task(executor="thread")
        def work() -> None: ...

        with pytest.raises(OptionInvalid, match=r"task 'work': a timeout cannot stop what runs in a thread"):
            work.using(timeout=5)

        assert work.using(timeout=None, soft_timeout=3).options.soft_timeout == 3_000


def test_a_name_cannot_be_a_default_of_the_app() -> None:
    with pytest.raises(OptionInvalid, match="name belongs to one task"):
        app_with({"name": "work"})


@pytest.mark.parametrize("option", ["key", "tenant", "tags"])
def test_half_a_surrogate_pair_is_refused_where_it_is_given(option: str) -> None:
    value: Any = ["\ud800"] if option == "tags" else "\ud800"
    given: Any = {option: value}

    with pytest.raises(OptionInvalid, match="half of a surrogate pair"):
        check_call_options(given, where="task 'x'")


@pytest.mark.parametrize("option", ["key", "tenant", "tags"])
def test_what_postgresql_could_not_hold_is_refused_for_every_store(option: str) -> None:
    value: Any = ["a\0b"] if option == "tags" else "a\0b"
    given: Any = {option: value}

    with pytest.raises(OptionInvalid, match=r"has U\+0000 in it, as character 1"):
        check_call_options(given, where="task 'x'")


def test_the_name_of_a_worker_is_text_that_every_store_can_hold() -> None:
    for name in ("a\0b", "\ud800"):
        with pytest.raises(OptionInvalid, match="name"):
            Worker(Shigoto("memory:"), name=name)
