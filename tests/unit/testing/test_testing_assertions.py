"""`jobs.enqueued`, `assert_enqueued` and `refute_enqueued`: what was asked for, and what is said if it was not."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from shigoto import DeclarationError, OptionInvalid, Retry, Shigoto, State
from shigoto.testing import Jobs

NOW = datetime(2026, 3, 1, tzinfo=UTC)

app = Shigoto("memory:")


@app.task(queue="mail", aliases=["send-old"])
def send(to: str, copies: int = 1) -> None: ...


@app.task(tags=["nightly"])
def report(store: UUID, day: datetime) -> None: ...


@app.task
def many(numbers: list[int], words: set[str]) -> None: ...


@app.task(retry=Retry.linear(minutes=5))
def fail() -> None:
    raise OSError("boom")


@pytest.fixture
def jobs() -> Any:
    with app.test(now=NOW) as jobs:
        yield jobs


def refused(jobs: Jobs, *target: Any, **sought: Any) -> str:
    with pytest.raises(AssertionError) as raised:
        jobs.assert_enqueued(*target, **sought)
    return str(raised.value)


class TestWhatMatches:
    def test_a_task_matches_all_its_jobs_oldest_first(self, jobs: Jobs) -> None:
        handles = [send.enqueue("ada"), send.enqueue("bob")]
        report.enqueue(UUID(int=1), NOW)

        assert [job.id for job in jobs.enqueued(send)] == [handle.id for handle in handles]
        assert len(jobs.enqueued()) == 3
        assert len(jobs.enqueued("send")) == 2
        jobs.assert_enqueued(send, count=2)
        jobs.assert_enqueued(count=3)
        jobs.refute_enqueued(fail)
        jobs.assert_enqueued(fail, count=0)

    def test_a_call_matches_all_its_arguments(self, jobs: Jobs) -> None:
        handle = send.enqueue("ada", 7)

        assert [job.id for job in jobs.assert_enqueued(send.call("ada", 7))] == [handle.id]
        jobs.assert_enqueued(send.call(copies=7, to="ada"))
        jobs.refute_enqueued(send.call("ada"))
        jobs.refute_enqueued(send.call("ada", 8))

    def test_some_arguments_match_as_values_with_their_defaults(self, jobs: Jobs) -> None:
        store = UUID(int=1)
        send.enqueue("ada")
        report.enqueue(store, NOW)

        jobs.assert_enqueued(send, args={"to": "ada"})
        jobs.assert_enqueued(send, args={"copies": 1})
        jobs.refute_enqueued(send, args={"copies": 2})
        jobs.assert_enqueued(report, args={"store": store, "day": NOW})
        jobs.assert_enqueued(report, args={"store": str(store)})
        jobs.assert_enqueued(args={"to": "ada"}, count=1)

    def test_options_match(self, jobs: Jobs) -> None:
        send.using(priority=3, key="k", tags=["a", "b"], tenant="t").enqueue("ada")
        send.enqueue("bob")
        report.using(queue="slow").enqueue(UUID(int=1), NOW)

        for sought in (
            {"priority": 3},
            {"key": "k"},
            {"tag": "a"},
            {"tag": "b"},
            {"tenant": "t"},
            {"priority": 3, "key": "k", "queue": "mail"},
        ):
            [job] = jobs.assert_enqueued(send, count=1, **sought)
            assert job.key == "k"
        jobs.assert_enqueued(queue="slow", count=1)
        jobs.assert_enqueued(send, key=None, count=1)
        jobs.assert_enqueued(report, tag="nightly")
        jobs.refute_enqueued(send, priority=3, key="other")

    def test_times_match_as_they_were_asked_for(self, jobs: Jobs) -> None:
        send.using(delay=timedelta(hours=2)).enqueue("ada")
        send.using(run_at=NOW + timedelta(days=1)).enqueue("bob")
        fail.enqueue()
        jobs.run_all()

        jobs.assert_enqueued(send, delay=7200, count=1)
        jobs.assert_enqueued(send, run_at=NOW + timedelta(hours=2), count=1)
        jobs.assert_enqueued(send, delay=timedelta(days=1), count=1)
        jobs.assert_enqueued(fail, delay=0)
        jobs.refute_enqueued(fail, delay=300)

    def test_what_using_says_of_a_call_or_task_counts(self, jobs: Jobs) -> None:
        send.using(queue="slow", delay=60, tags=["a"]).enqueue("ada")
        send.enqueue("ada")

        jobs.assert_enqueued(send.using(queue="slow").call("ada"), count=1)
        jobs.assert_enqueued(send.using(delay=60).call("ada"), count=1)
        jobs.assert_enqueued(send.using(tags=["a"]), count=1)
        jobs.assert_enqueued(send.call("ada"), count=2)
        jobs.refute_enqueued(send.using(retries=1).call("ada"))
        jobs.refute_enqueued(send.using(delay=61).call("ada"))

    def test_a_call_with_the_defaults_is_the_call_without_them(self, jobs: Jobs) -> None:
        send.enqueue("ada")
        send.enqueue("bob", 1)

        jobs.assert_enqueued(send.call("ada", 1), count=1)
        jobs.assert_enqueued(send.call("bob"), count=1)

    def test_values_are_compared_and_not_what_is_shown_of_them(self, jobs: Jobs) -> None:
        send.enqueue("x" * 300 + "A")
        many.enqueue(list(range(1_000)), {"b", "a", "c"})

        jobs.refute_enqueued(send.call("x" * 300 + "B"))
        jobs.refute_enqueued(send, args={"to": "x" * 300 + "B"})
        jobs.assert_enqueued(send.call("x" * 300 + "A"))
        jobs.refute_enqueued(many.call(list(range(500)), {"a", "b", "c"}))
        jobs.assert_enqueued(many.call(list(range(1_000)), {"c", "b", "a"}))

    def test_using_counts_for_all_it_says_and_for_nothing_else(self, jobs: Jobs) -> None:
        send.using(
            queue="slow",
            priority=9,
            delay=50,
            expires=100,
            key="k",
            tenant="z",
            tags=["a"],
            meta={"by": "me"},
        ).enqueue("ada")

        for said, matches in (
            ({"queue": "mail"}, False),
            ({"queue": "slow"}, True),
            ({"priority": 0}, False),
            ({"expires": 999}, False),
            ({"expires": 100}, True),
            ({"expires": NOW + timedelta(seconds=100)}, True),
            ({"expires": None}, False),
            ({"delay": 0}, False),
            ({"delay": 50}, True),
            ({"run_at": NOW + timedelta(seconds=50)}, True),
            ({"run_at": NOW}, False),
            ({"key": None}, False),
            ({"key": "k", "key_mode": "replace"}, True),
            ({"tags": ["b"]}, False),
            ({"tags": []}, False),
            ({"tags": ["a"]}, True),
            ({"meta": {"by": "you"}}, False),
            ({"meta": {"by": "me"}}, True),
            ({"id": UUID(int=1)}, False),
            ({"timeout": None}, True),
            ({"timeout": 5}, False),
            ({"soft_timeout": 5}, False),
            ({"max_crashes": 3}, True),
            ({"max_crashes": 1}, False),
            ({"retries": 5}, True),
            ({"retries": 4}, False),
            ({"retry": Retry()}, True),
            ({"retry": Retry.linear(minutes=5, retries=5)}, False),
        ):
            options: Any = said
            assert len(jobs.enqueued(send.using(**options).call("ada"))) == matches, said
            assert len(jobs.enqueued(send.using(**options))) == matches, said

    def test_what_a_job_has_from_its_task_may_be_said(self, jobs: Jobs) -> None:
        fail.enqueue()
        fail.using(retries=1, timeout=7).enqueue()

        jobs.assert_enqueued(fail.using(retry=Retry.linear(minutes=5)), count=1)
        jobs.assert_enqueued(fail.using(timeout=None), count=1)
        jobs.assert_enqueued(fail.using(timeout=7, retries=1), count=1)

    def test_any_state_matches_unless_one_is_named(self, jobs: Jobs) -> None:
        send.enqueue("ada")
        fail.enqueue()
        jobs.run_all()
        send.using(delay=5).enqueue("later")

        jobs.assert_enqueued(send, count=2)
        jobs.assert_enqueued(send, state=State.COMPLETED, count=1)
        jobs.assert_enqueued(send, state="scheduled", count=1)
        jobs.assert_enqueued(fail, state="retrying")
        jobs.refute_enqueued(fail, state="failed")

    def test_jobs_under_an_old_name_are_jobs_of_the_task(self, jobs: Jobs) -> None:
        app.enqueue_by_name("send-old", {"to": "ada"})
        app.enqueue_by_name("elsewhere", {"to": 1}, allow_unknown=True)

        jobs.assert_enqueued(send.call("ada"))
        jobs.assert_enqueued("elsewhere", args={"to": 1})

    def test_a_replaced_job_is_what_it_is_now(self, jobs: Jobs) -> None:
        send.using(key="k").enqueue("ada")
        send.using(key="k", key_mode="replace", delay=60).enqueue("bob")

        jobs.assert_enqueued(send.call("bob"), delay=60, count=1)
        jobs.refute_enqueued(send.call("ada"))


class TestWhatIsSaid:
    def test_what_was_enqueued_instead_and_how_far_it_is(self, jobs: Jobs) -> None:
        send.using(priority=3).enqueue("ada", 1)
        send.enqueue("bob", 7)
        report.enqueue(UUID(int=1), NOW)

        assert refused(jobs, send.call("ada", 7), queue="mail").splitlines() == [
            "No job of 'send' with to='ada', copies=7 with queue 'mail' was enqueued.",
            "The closest:",
            """  #1 send {"to":"ada","copies":1} in 'mail', pending""",
            "    copies is 1, not 7",
            """  #2 send {"to":"bob","copies":7} in 'mail', pending""",
            "    to is 'bob', not 'ada'",
            "Enqueued in this test:",
            """  #1 send {"to":"ada","copies":1} in 'mail', pending""",
            """  #2 send {"to":"bob","copies":7} in 'mail', pending""",
            f"""  #3 report {{"store":"{UUID(int=1)}","day":"2026-03-01T00:00:00Z"}} in 'default', pending""",
        ]

    def test_each_difference_is_named(self, jobs: Jobs) -> None:
        send.enqueue("ada")

        for sought, difference in (
            ({"queue": "slow"}, "queue is 'mail', not 'slow'"),
            ({"priority": 1}, "priority is 0, not 1"),
            ({"key": "k"}, "key is None, not 'k'"),
            ({"tenant": "t"}, "tenant is '', not 't'"),
            ({"tag": "a"}, "its tags are [], without 'a'"),
            ({"delay": 5}, "its delay is 0 s, not 5 s"),
            (
                {"run_at": NOW + timedelta(1)},
                "run_at is 2026-03-01T00:00:00+00:00, not 2026-03-02T00:00:00+00:00",
            ),
            ({"state": "failed"}, "it is pending, not failed"),
            ({"args": {"copies": 2}}, "copies is 1, not 2"),
        ):
            assert f"    {difference}\n" in refused(jobs, send, **sought)
        assert "    copies is 1, not 2\n" in refused(jobs, send.call("ada", 2))

    def test_so_is_what_using_said(self, jobs: Jobs) -> None:
        send.using(expires=60, tags=["b"]).enqueue("ada")

        for said, difference in (
            ({"delay": 5}, "its delay is 0 s, not 5 s"),
            ({"expires": None}, "it has expiry after 60 s, not no expiry"),
            ({"expires": 5}, "it has expiry after 60 s, not expiry after 5 s"),
            (
                {"expires": NOW},
                "expiry at 2026-03-01T00:01:00+00:00, not expiry at 2026-03-01T00:00:00+00:00",
            ),
            ({"timeout": 2.5}, "timeout is None, not 2.5 s"),
            ({"retries": 1}, "retries is 5, not 1"),
            ({"tags": ["a"]}, "tags is ['b'], not ['a']"),
        ):
            options: Any = said
            assert f"{difference}\n" in refused(jobs, send.using(**options).call("ada"))
        assert refused(jobs, send.using(delay=5, expires=9, key="k").call("ada")).startswith(
            "No job of 'send' with to='ada' with key 'k' with a delay of 5 s with expiry after 9 s was enqueued."
        )

    def test_of_long_values_the_place_where_they_part_is_shown(self, jobs: Jobs) -> None:
        send.enqueue("x" * 300 + "A" + "y" * 300)

        said = refused(jobs, send.call("x" * 300 + "B" + "y" * 300))

        assert f"to is …{'x' * 20}A{'y' * 59}…, not …{'x' * 20}B{'y' * 59}…, from letter 301 on" in said

    def test_an_argument_too_many_or_too_few(self, jobs: Jobs) -> None:
        app.enqueue_by_name("elsewhere", {"a": 1}, allow_unknown=True)
        other = Shigoto("memory:")

        @other.task
        def elsewhere(b: int) -> None: ...

        said = refused(jobs, elsewhere.call(2))

        assert "b is not passed, and should be 2; a is passed, 1, and should not be" in said

    def test_nothing_at_all(self, jobs: Jobs) -> None:
        assert refused(jobs, send) == "No job of 'send' was enqueued.\nNothing was enqueued at all."
        assert refused(jobs).startswith("No job was enqueued.")
        assert refused(jobs, fail.call()).startswith("No job of 'fail' with no arguments was enqueued.")

    def test_a_count_that_is_not_met(self, jobs: Jobs) -> None:
        send.enqueue("ada")
        send.enqueue("bob")

        said = refused(jobs, send, count=1)

        assert said.startswith("2 jobs instead of 1: job of 'send'.\nEnqueued in this test:\n* #1 send")
        assert refused(jobs, send, args={"to": "ada"}, count=2).startswith(
            "1 job instead of 2: job of 'send'"
        )

    def test_what_should_not_be_there_is_marked(self, jobs: Jobs) -> None:
        send.enqueue("ada")
        send.enqueue("bob")

        with pytest.raises(AssertionError) as raised:
            jobs.refute_enqueued(send, args={"to": "bob"})

        assert str(raised.value).splitlines() == [
            "1 job too many: job of 'send' with to='bob'.",
            "Enqueued in this test:",
            """  #1 send {"to":"ada"} in 'mail', pending""",
            """* #2 send {"to":"bob"} in 'mail', pending""",
        ]

    def test_long_lists_and_long_arguments_are_cut(self, jobs: Jobs) -> None:
        for _ in range(30):
            send.enqueue("a" * 1_000)

        said = refused(jobs, fail)

        assert said.endswith("  … and 10 more")
        assert len(said) < 10_000


class TestWhatCannotBeMeant:
    @pytest.mark.parametrize(
        ("target", "sought", "why"),
        [
            (send, {"args": {"copy": 1}}, "has no parameter 'copy'. Did you mean 'copies'"),
            (send, {"quue": "mail"}, "nothing called 'quue' to look for. Did you mean 'queue'"),
            (send, {"run_at": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001
            (send, {"delay": "soon"}, "delay must be a timedelta"),
            (send, {"state": "asleep"}, "There is no state 'asleep'"),
            (send, {"count": "two"}, "count must be a whole number"),
            (send, {"tag": ["a"]}, "tag must be a string"),
            (send, {"queue": None}, "queue must be a string"),
            (send, {"priority": "9"}, "priority must be a whole number"),
            (send, {"args": ["ada"]}, "args takes a mapping"),
            ("sned", {}, "No task of this app is called 'sned'.* Did you mean 'send'"),
            (7, {}, "by a task, a call of one, or a name, not 7"),
            (send.fn, {}, "by a task, a call of one, or a name"),
        ],
    )
    def test_it_is_refused(self, jobs: Jobs, target: Any, sought: Any, why: str) -> None:
        send.enqueue("ada")

        with pytest.raises(OptionInvalid, match=why):
            jobs.assert_enqueued(target, **sought)

    def test_a_bool_is_no_number(self, jobs: Jobs) -> None:
        send.enqueue("ada", 1)

        jobs.refute_enqueued(send, args={"copies": True})

    def test_a_name_that_is_like_no_other_may_be_refuted(self, jobs: Jobs) -> None:
        jobs.refute_enqueued("billing.charge")

    def test_a_block_that_was_never_entered_has_nothing_to_say(self) -> None:
        jobs = app.test()

        for ask in (jobs.enqueued, jobs.assert_enqueued, jobs.refute_enqueued):
            with pytest.raises(DeclarationError, match="has not begun"):
                ask(send)

    def test_a_task_of_another_app_is_refused(self, jobs: Jobs) -> None:
        other = Shigoto("memory:")

        @other.task
        def theirs() -> None: ...

        with pytest.raises(OptionInvalid, match="no task of this app"):
            jobs.refute_enqueued(theirs)
