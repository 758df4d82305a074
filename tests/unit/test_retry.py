"""Retry policies: the exact delay after every failure, for every preset."""

from datetime import timedelta
from math import e
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shigoto import OptionInvalid, Retry

MINUTE = 60_000


class Middle(Random):
    """Randomness that always falls in the middle."""

    def random(self) -> float:
        return 0.5


def delays(policy: Retry, error: BaseException | None = None) -> list[int | None]:
    """What the policy says after each failure, up to and including the one that ends the job."""
    return [policy.delay(failures, error, Middle()) for failures in range(policy.max_failures)]


def test_linear_waits_five_ten_and_fifteen_minutes_and_then_gives_up() -> None:
    """S0-38"""
    assert delays(Retry.linear(minutes=5)) == [5 * MINUTE, 10 * MINUTE, 15 * MINUTE, None]


def test_linear_counts_minutes_and_seconds_together() -> None:
    assert delays(Retry.linear(minutes=1, seconds=30, retries=2)) == [90_000, 180_000, None]


def test_immediate_runs_five_more_times_without_a_wait() -> None:
    """S1-18, S1-19"""
    policy = Retry.immediate()

    assert policy.max_failures == 6
    assert delays(policy) == [0, 0, 0, 0, 0, None]


def test_never_gives_up_at_the_first_failure() -> None:
    """S2-4"""
    policy = Retry.never()

    assert policy.max_failures == 1
    assert delays(policy) == [None]


@pytest.mark.parametrize("attempts", [3, 5, 10, 25])
def test_attempts_counts_every_run_and_follows_powers_of_e_up_to_the_tenth(attempts: int) -> None:
    policy = Retry.attempts(attempts)

    assert policy.max_failures == attempts
    assert delays(policy) == [round(e ** min(10, n + 1) * 1000) for n in range(attempts - 1)] + [None]
    assert delays(Retry.attempts(3)) == [2_718, 7_389, None]


def test_exponential_doubles_up_to_the_cap_and_takes_a_random_share_of_it() -> None:
    assert delays(Retry()) == [3_750, 7_500, 15_000, 30_000, 60_000, None]
    assert delays(Retry.exponential(jitter=False)) == [5_000, 10_000, 20_000, 40_000, 80_000, None]
    assert delays(Retry.exponential(retries=4, base=1, factor=10, cap=60, jitter=False)) == [
        1_000,
        10_000,
        60_000,
        60_000,
        None,
    ]


def test_the_default_policy_is_the_exponential_one() -> None:
    assert Retry() == Retry.exponential()


@given(failures=st.integers(0, 9_999), seed=st.integers())
def test_jitter_stays_between_half_and_all_of_the_wait(failures: int, seed: int) -> None:
    policy = Retry(retries=10_000)
    whole = min(3_600_000, 5_000 * 2 ** min(failures, 20))

    delay = policy.delay(failures, None, Random(seed))

    assert delay is not None
    assert whole * 0.5 <= delay <= whole


def test_delays_are_used_one_by_one_and_the_last_repeats_when_a_job_has_more_retries() -> None:
    policy = Retry.delays([1, timedelta(minutes=1), 0.5])

    assert delays(policy) == [1_000, MINUTE, 500, None]
    assert delays(policy.with_retries(4)) == [1_000, MINUTE, 500, 500, None]


def test_a_custom_policy_is_asked_with_the_failures_before_and_the_error() -> None:
    error = ConnectionError()
    asked: list[tuple[int, BaseException | None]] = []

    def decide(failures: int, error: BaseException | None) -> float | timedelta | None:
        asked.append((failures, error))
        if failures == 0:
            return 1.5
        return timedelta(hours=1) if failures == 1 else None

    assert delays(Retry.custom(decide, retries=3), error) == [1_500, 3_600_000, None, None]
    assert asked == [(0, error), (1, error), (2, error)]


def test_a_custom_policy_that_answers_nonsense_is_told_so() -> None:
    policy = Retry.custom(lambda failures, error: -1, retries=3)

    with pytest.raises(OptionInvalid, match="custom retry policy must not be negative"):
        policy.delay(0, None, Random())


def test_only_the_errors_named_by_on_are_retried_and_give_up_on_wins() -> None:
    """S0-55"""
    policy = Retry.immediate(on=OSError, give_up_on=(PermissionError, FileNotFoundError))

    assert policy.delay(0, ConnectionError(), Random()) == 0
    assert policy.delay(0, ValueError(), Random()) is None
    assert policy.delay(0, FileNotFoundError(), Random()) is None
    assert Retry.immediate(give_up_on=ValueError).delay(0, KeyError(), Random()) == 0


def test_the_jobs_own_number_of_failures_goes_before_the_policys() -> None:
    policy = Retry.immediate(retries=1)

    assert policy.delay(1, None, Random()) is None
    assert policy.delay(1, None, Random(), max_failures=3) == 0
    assert policy.delay(0, None, Random(), max_failures=1) is None


@pytest.mark.parametrize(
    "policy",
    [
        Retry(),
        Retry.exponential(retries=1, base=0.25, factor=1.5, cap=9, jitter=False),
        Retry.linear(minutes=5),
        Retry.immediate(),
        Retry.never(),
        Retry.attempts(25),
        Retry.delays([1, 2, 3]),
    ],
)
def test_a_policy_without_functions_and_types_survives_as_text(policy: Retry) -> None:
    assert Retry.load(policy.dump()) == policy


@pytest.mark.parametrize(
    "policy",
    [Retry.custom(lambda failures, error: 1, retries=1), Retry(on=OSError), Retry(give_up_on=OSError)],
)
def test_a_policy_with_a_function_or_types_cannot_be_written_as_text(policy: Retry) -> None:
    assert not policy.storable
    with pytest.raises(OptionInvalid, match="give it to the task"):
        policy.dump()


@pytest.mark.parametrize(
    "text", ["", "{}", '{"retries":1,"curve":{"type":"later"}}', '{"retries":-1,"curve":{"type":"steep"}}']
)
def test_a_text_that_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(OptionInvalid):
        Retry.load(text)


def test_what_cannot_be_meant_is_refused_where_it_is_written() -> None:
    with pytest.raises(OptionInvalid, match="retries must be a whole number from 0 to 10000"):
        Retry(retries=-1)
    with pytest.raises(OptionInvalid, match="retries must be"):
        Retry.immediate(retries=10_001)
    with pytest.raises(OptionInvalid, match=r"Retry\.immediate"):
        Retry.linear()
    with pytest.raises(OptionInvalid, match="not be negative"):
        Retry.linear(minutes=-5)
    with pytest.raises(OptionInvalid, match="at least 1"):
        Retry.attempts(0)
    with pytest.raises(OptionInvalid, match="at least one delay"):
        Retry.delays([])
    with pytest.raises(OptionInvalid, match="finite"):
        Retry.delays([float("nan")])
    with pytest.raises(OptionInvalid, match="factor"):
        Retry.exponential(factor=0.5)
    with pytest.raises(OptionInvalid, match="below base"):
        Retry.exponential(base=10, cap=5)
    with pytest.raises(OptionInvalid, match="hundred years"):
        Retry.exponential(cap=10**10)
