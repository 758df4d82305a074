"""What jobs of one call site share is encoded once, and never that of another."""

from typing import Any
from uuid import UUID

from msgspec.structs import replace

from shigoto.engine.postgres import enqueueing
from shigoto.engine.postgres.enqueueing import Patterns
from shigoto.model.job import JobSpec

TEMPLATE = JobSpec(id=UUID(int=0), payload="", task="mail", queue="default")


def job(number: int, template: JobSpec = TEMPLATE, **changes: Any) -> JobSpec:
    return replace(template, id=UUID(int=number), payload=str(number), template=template, **changes)


def test_jobs_of_one_pattern_share_what_is_encoded() -> None:
    patterns = Patterns()

    first, second = patterns.shared(job(1)), patterns.shared(job(2))

    assert first is second
    assert list(first.values)[:3] == [b"", b"default", b"mail"]


def test_another_pattern_is_encoded_by_itself_though_it_is_equal() -> None:
    patterns = Patterns()
    other = replace(TEMPLATE, queue="slow")

    assert list(patterns.shared(job(1)).values)[1] == b"default"
    assert list(patterns.shared(job(2, other)).values)[1] == b"slow"
    assert patterns.shared(job(3, replace(TEMPLATE))) is not patterns.shared(job(4))


def test_what_has_no_pattern_is_never_taken_for_another() -> None:
    patterns = Patterns()
    one, other = replace(TEMPLATE, task="a"), replace(TEMPLATE, task="b")

    assert list(patterns.shared(one).values)[2] == b"a"
    assert list(patterns.shared(other).values)[2] == b"b"


def test_a_program_that_makes_new_patterns_all_the_time_keeps_few_of_them(monkeypatch: Any) -> None:
    monkeypatch.setattr(enqueueing, "MOST_PATTERNS", 10)
    patterns = Patterns()

    for number in range(100):
        patterns.shared(job(number, replace(TEMPLATE, queue=f"q{number}")))

    assert len(vars(patterns)["_known"]) <= 10
    assert list(patterns.shared(job(5)).values)[1] == b"default"
