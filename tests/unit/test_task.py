"""Tasks: what a decorated function becomes, what it is called, and which app it belongs to."""

import asyncio
import functools
import inspect
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest

from shigoto import (
    JSON,
    Context,
    DeclarationError,
    OptionInvalid,
    Shigoto,
    StoreRefused,
    Task,
    Tasks,
    Unsupported,
)
from shigoto.engine.memory import MemoryEngine

T = TypeVar("T")


@pytest.fixture
def app() -> Shigoto:
    return Shigoto(engine=MemoryEngine())


def declare(app: Shigoto, fn: Callable[..., Any], **options: Any) -> Task[..., Any]:
    """Declare as a caller would who has no type checker."""
    return app.task(**options)(fn)


def test_one_decorator_makes_a_function_a_task(app: Shigoto) -> None:
    """S0-24, S0-64"""

    @app.task
    def send_mail(to: str, copies: int = 1) -> str:
        """Send a mail."""
        return f"{copies} to {to}"

    assert send_mail.name == "send_mail"
    assert not send_mail.is_async
    assert not send_mail.takes_context
    assert app.tasks == {"send_mail": send_mail}
    assert app.resolve("send_mail") is send_mail
    assert send_mail.__doc__ == "Send a mail."
    assert str(inspect.signature(send_mail)) == "(to: str, copies: int = 1) -> str"


def test_a_task_can_still_be_called(app: Shigoto) -> None:
    @app.task
    def add(first: int, second: int) -> int:
        return first + second

    @app.task
    async def double(number: int) -> int:
        return number * 2

    assert add(1, second=2) == 3
    assert asyncio.run(double(4)) == 8
    assert double.is_async


def test_a_plain_call_of_a_task_with_a_context_gets_a_detached_one(app: Shigoto) -> None:
    """Edge (f): whoever calls leaves the context out; the function itself stays reachable."""
    seen: list[Context] = []

    @app.task(queue="mail")
    def work(ctx: Context, number: int) -> int:
        seen.append(ctx)
        ctx.progress(0.5, "half")
        return number

    assert work.takes_context
    assert work(7) == 7
    assert (seen[0].task, seen[0].attempt, seen[0].number, seen[0].cancelled) == ("work", 1, 0, False)
    assert work.fn(seen[0], 8) == 8


def test_a_name_is_given_or_taken_from_the_function_and_aliases_find_it_too(app: Shigoto) -> None:
    """S3-30"""

    @app.task(name="send-operator-invitation-email", aliases=["send_invitation"])
    def send() -> None: ...

    assert send.name == "send-operator-invitation-email"
    assert app.resolve("send_invitation") is send
    assert app.resolve("send") is None
    assert list(app.tasks) == ["send-operator-invitation-email"]
    with pytest.raises(OptionInvalid, match=r"write aliases=\['old'\]"):
        declare(app, send.fn, aliases="old")


def test_a_function_whose_name_is_no_task_name_needs_another(app: Shigoto) -> None:
    def sendMail() -> None: ...  # noqa: N802

    with pytest.raises(
        DeclarationError, match=r"How about 'send_mail'\? Rename the function, or say @app\.task\(name=…\)"
    ):
        declare(app, sendMail)
    with pytest.raises(OptionInvalid, match="The task name 'Send Mail' must be kebab-case"):
        declare(app, sendMail, name="Send Mail")

    assert declare(app, sendMail, name="send-mail").name == "send-mail"


def test_two_tasks_cannot_share_a_name_or_an_alias(app: Shigoto) -> None:
    def work() -> None: ...

    declare(app, work, aliases=["job"])

    with pytest.raises(DeclarationError, match=r"Two tasks are called 'work': .*work and .*work"):
        declare(app, work)
    with pytest.raises(DeclarationError, match="Two tasks are called 'job'"):
        declare(app, work, name="job")
    with pytest.raises(DeclarationError, match="Two tasks are called 'work'"):
        declare(app, work, name="other", aliases=["work"])

    assert list(app.tasks) == ["work"]


def test_aliases_are_a_list_of_names(app: Shigoto) -> None:
    def work() -> None: ...

    with pytest.raises(OptionInvalid, match=r"write aliases=\['job'\]"):
        declare(app, work, aliases="job")
    with pytest.raises(OptionInvalid, match=r"aliases takes a list of strings, not None; \[\] is for none"):
        declare(app, work, aliases=None)


def test_a_collection_is_included_as_a_whole_or_not_at_all(app: Shigoto) -> None:
    def work() -> None: ...

    def other() -> None: ...

    first, second = Tasks(), Tasks()
    fine, clash = first.task(other), second.task(work)
    declare(app, work)

    with pytest.raises(DeclarationError, match="Two tasks are called 'work'"):
        app.include(first, second)

    assert list(app.tasks) == ["work"]
    assert app.resolve("work") is not clash
    with pytest.raises(DeclarationError, match="belongs to no app yet"):
        fine.enqueue()
    app.include(first)
    assert app.resolve("other") is fine


def test_tasks_that_are_included_together_cannot_share_a_name(app: Shigoto) -> None:
    def work() -> None: ...

    tasks = Tasks()
    tasks.task(work)
    tasks.task(name="other", aliases=["work"])(work)

    with pytest.raises(DeclarationError, match="Two tasks are called 'work'"):
        app.include(tasks)
    assert not app.tasks


def test_a_default_that_one_task_cannot_have_leaves_the_collection_outside() -> None:
    app = Shigoto(engine=MemoryEngine(), defaults={"timeout": 5})
    tasks = Tasks()

    @tasks.task
    async def fine() -> None: ...

    @tasks.task(executor="thread")
    def plain() -> None: ...

    with pytest.raises(DeclarationError, match="task 'plain': a timeout cannot stop what runs in a thread"):
        app.include(tasks)
    assert not app.tasks
    assert fine.options.timeout is None
    assert plain.options.timeout is None


def test_only_collections_are_included(app: Shigoto) -> None:
    thing: Any = sys

    with pytest.raises(DeclarationError, match=r"include takes collections made with Tasks\(\), not <module"):
        app.include(thing)


def test_an_async_function_in_a_wrapper_that_does_not_await_it_is_refused(app: Shigoto) -> None:
    """Its coroutine would be the result, and what it does would never be done."""

    async def work(number: int) -> int:
        return number

    @functools.wraps(work)
    def careless(*args: Any, **kwargs: Any) -> Any:
        return work(*args, **kwargs)

    @functools.wraps(work)
    async def careful(*args: Any, **kwargs: Any) -> Any:
        return await work(*args, **kwargs)

    with pytest.raises(DeclarationError, match=r"task 'work': the function is async but .* make the wrapper"):
        declare(app, careless)
    assert declare(app, careful).is_async


def test_a_task_without_an_app_can_be_replaced_by_a_mock_of_its_kind() -> None:
    @Tasks().task
    def early(number: int) -> int:
        return number

    double = mock.create_autospec(early)

    double.enqueue(5)
    double.enqueue.assert_called_once_with(5)


def test_tasks_are_declared_without_an_app_and_included_later(app: Shigoto) -> None:
    tasks = Tasks()

    @tasks.task
    def early(number: int) -> int:
        return number

    urgent = early.using(priority=9)
    with pytest.raises(DeclarationError, match=r"task 'early' belongs to no app yet.*app\.include\(tasks\)"):
        urgent.enqueue(1)
    app.include(tasks, tasks)

    @tasks.task(queue="mail")
    async def late() -> None: ...

    assert list(tasks) == list(app.tasks.values()) == [early, late]
    assert urgent.enqueue(1).job().priority == 9
    assert late.enqueue().job().queue == "mail"


def test_included_tasks_take_the_defaults_of_the_app() -> None:
    tasks = Tasks()

    @tasks.task(priority=1)
    def work() -> None: ...

    before = work.options.queue
    Shigoto(engine=MemoryEngine(), defaults={"queue": "shop", "priority": 5}).include(tasks)

    assert before == "default"
    assert (work.options.queue, work.options.priority) == ("shop", 1)


def test_a_collection_belongs_to_one_app(app: Shigoto) -> None:
    tasks = Tasks()
    app.include(tasks)

    with pytest.raises(DeclarationError, match="already part of another app"):
        Shigoto(engine=MemoryEngine()).include(tasks)


def test_a_first_parameter_that_could_be_anything_is_refused_at_declaration(app: Shigoto) -> None:
    """Edge (a): type checkers take it for the context and drop it from the call."""

    def anything(value: Any) -> None: ...
    def an_object(value: object) -> None: ...
    def generic(value: T) -> T:
        return value

    for fn in (anything, an_object, generic, lambda value: value):
        with pytest.raises(DeclarationError):
            declare(app, fn, name="work")

    @app.task
    def json(value: JSON) -> JSON:
        return value

    assert json({"a": [1]}) == {"a": [1]}


def test_annotations_are_resolved_at_the_first_use_so_that_they_may_refer_forward(
    app: Shigoto, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(item: int) -> None: ...

    work.__annotations__["item"] = "Later"
    task = declare(app, work)

    monkeypatch.setitem(globals(), "Later", int)

    assert task.enqueue(1).job().payload == '{"item":1}'


def test_check_reports_all_broken_annotations_together(app: Shigoto) -> None:
    def work(item: int) -> None: ...

    declare(app, work, name="good")
    app.check()
    for name, annotation in (("first", "Missing"), ("second", "Unknown")):

        def broken(item: int) -> None: ...

        broken.__annotations__["item"] = annotation
        declare(app, broken, name=name)

    with pytest.raises(DeclarationError, match=r"(?s)'first'.*Missing.*\n.*'second'.*Unknown"):
        app.check()


def test_load_imports_the_named_modules_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_tasks.py").write_text(
        "from shigoto import Tasks\ntasks = Tasks()\n@tasks.task\ndef ship(order: int) -> None: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    app = Shigoto(engine=MemoryEngine(), imports=["shop_tasks"])
    assert "shop_tasks" not in sys.modules

    app.load()
    app.include(sys.modules["shop_tasks"].tasks)
    app.load()

    assert list(app.tasks) == ["ship"]
    monkeypatch.delitem(sys.modules, "shop_tasks")


def test_an_import_that_fails_is_tried_again_by_the_next_load() -> None:
    app = Shigoto(engine=MemoryEngine(), imports=["no_such_module"])

    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            app.load()


def test_the_store_is_the_url_given_or_that_of_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHIGOTO_URL", "memory:")
    assert Shigoto("sqlite:///jobs.db").url == "sqlite:///jobs.db"
    assert Shigoto().url == "memory:"
    assert Shigoto().engine.capabilities.name == "memory"

    monkeypatch.delenv("SHIGOTO_URL")
    assert Shigoto().url == "sqlite:///workers.db"


def test_a_store_may_be_given_as_a_path(tmp_path: Path) -> None:
    odd = tmp_path / "50 % odd?.db"
    assert Shigoto(Path("jobs.db")).url == "sqlite:///jobs.db"
    assert Path(getattr(Shigoto(odd).engine, "path", "")) == odd

    number: Any = 5
    with pytest.raises(DeclarationError, match=r"The store must be an address or a path, .* not 5"):
        Shigoto(number)


@pytest.mark.parametrize("url", ["", "  "])
def test_an_empty_address_is_refused_instead_of_taken_for_the_default(url: str) -> None:
    with pytest.raises(
        DeclarationError, match=r"The address of the store is empty: .* variable that is not set"
    ):
        Shigoto(url)


def test_the_url_can_be_changed_until_the_store_is_used() -> None:
    app = Shigoto("sqlite:///elsewhere.db")
    app.url = "memory:"
    assert app.engine is app.engine

    with pytest.raises(DeclarationError, match="uses memory: already"):
        app.url = "sqlite:///jobs.db"


def test_a_store_nobody_knows_is_refused_at_the_first_use() -> None:
    app = Shigoto("mongodb://host/jobs")

    with pytest.raises(StoreRefused):
        _ = app.engine


def test_an_app_can_be_closed_unused_and_twice(app: Shigoto) -> None:
    Shigoto("sqlite:///never_opened.db").close()
    app.close()
    app.close()

    assert app.stats() == {}


def test_an_engine_without_connections_has_none_to_give(app: Shigoto) -> None:
    with pytest.raises(Unsupported, match="The memory engine has no connections"):
        app.connect()


class TestLifespan:
    """What a worker opens when it starts, handlers find in ctx.state."""

    async def test_an_async_generator_function_yields_the_state_and_closes_it(self, app: Shigoto) -> None:
        said: list[str] = []

        @app.lifespan
        async def resources(app: Shigoto) -> AsyncIterator[dict[str, str]]:
            said.append(f"open {app.url}")
            yield {"pool": "p"}
            said.append("close")

        async with app.enter_lifespan() as state:
            assert state == {"pool": "p"}
            assert said == ["open memory:"]

        assert said == ["open memory:", "close"]

    async def test_so_does_a_function_that_makes_an_async_context_manager(self, app: Shigoto) -> None:
        @app.lifespan
        @asynccontextmanager
        async def resources(app: Shigoto) -> AsyncIterator[int]:
            yield len(app.tasks)

        async with app.enter_lifespan() as state:
            assert state == 0

    async def test_an_app_without_one_has_no_state(self, app: Shigoto) -> None:
        async with app.enter_lifespan() as state:
            assert state is None

    async def test_each_process_or_worker_enters_its_own(self, app: Shigoto) -> None:
        @app.lifespan
        async def resources(app: Shigoto) -> AsyncIterator[object]:
            yield object()

        async with app.enter_lifespan() as one, app.enter_lifespan() as other:
            assert one is not other

    async def test_an_error_in_the_block_reaches_it(self, app: Shigoto) -> None:
        seen: list[BaseException] = []

        @app.lifespan
        async def resources(app: Shigoto) -> AsyncIterator[None]:
            try:
                yield
            except KeyError as error:
                seen.append(error)
                raise

        with pytest.raises(KeyError):
            async with app.enter_lifespan():
                raise KeyError("k")
        assert len(seen) == 1

    def test_a_second_one_is_refused(self, app: Shigoto) -> None:
        @app.lifespan
        async def first(app: Shigoto) -> AsyncIterator[None]:
            yield

        with pytest.raises(
            DeclarationError, match=r"lifespan already, .*first, and .*second .* Enter both in one"
        ):

            @app.lifespan
            async def second(app: Shigoto) -> AsyncIterator[None]:
                yield

    async def test_what_is_no_lifespan_is_refused(self, app: Shigoto) -> None:
        nothing: Any = 5
        with pytest.raises(DeclarationError, match="lifespan takes an async generator function"):
            app.lifespan(nothing)

        async def forgot_to_yield(app: Shigoto) -> None: ...

        wrong: Any = forgot_to_yield
        app.lifespan(wrong)
        with pytest.raises(DeclarationError, match=r"forgot_to_yield must be an async generator function"):
            async with app.enter_lifespan():
                pass
