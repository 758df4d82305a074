"""When to run a failed job again: a policy is a value, and its answer a pure function of the failure.

A policy is a number of retries, a curve of delays, and the errors it is meant for. The number travels with
the job: the store compares `failures` with `max_failures` in the very statement that records the failure,
so a job is never left pending with nothing to start it. The curve and the errors stay with the task, unless
one job was given a policy of its own; that one is stored as text, and so holds neither a function nor
exception types.
"""

from collections.abc import Callable, Sequence
from math import exp, isfinite
from random import Random
from typing import assert_never

import msgspec
from msgspec import Struct, structs

from shigoto.model.errors import OptionInvalid
from shigoto.model.text import plain_whole, shown
from shigoto.model.time import Duration, Millis, milliseconds

MAX_RETRIES = 10_000

Errors = type[BaseException] | tuple[type[BaseException], ...]
CustomDelay = Callable[[int, BaseException | None], Duration | None]


class Exponential(Struct, frozen=True, tag="exponential"):
    """min(cap, base·factorⁿ), times a random share between a half and one if jittered."""

    base: Millis = 5_000
    factor: float = 2.0
    cap: Millis = 3_600_000
    jitter: bool = True


class Linear(Struct, frozen=True, tag="linear"):
    """base·(n+1)."""

    base: Millis


class Steep(Struct, frozen=True, tag="steep"):
    """e^min(10, n+1) seconds: 2.7 s, 7.4 s, 20 s … up to six hours."""


class Listed(Struct, frozen=True, tag="listed"):
    """One delay after the other; the last one repeats."""

    delays: tuple[Millis, ...]


class Custom(Struct, frozen=True):
    """Whatever a function says; it lives on the task only."""

    fn: CustomDelay


StoredCurve = Exponential | Linear | Steep | Listed
Curve = StoredCurve | Custom


class Retry(Struct, frozen=True, kw_only=True):
    """A retry policy. `Retry()` is the default: 5 retries after about 5, 10, 20, 40 and 80 seconds.

    `on` names the errors worth a retry (none named: all), `give_up_on` those that are not, and wins.

        Retry.linear(minutes=5, retries=3)
        Retry(retries=8, give_up_on=PermissionError)
    """

    retries: int = 5
    curve: Curve = Exponential()
    on: Errors = ()
    give_up_on: Errors = ()

    def __post_init__(self) -> None:
        structs.force_setattr(self, "retries", check_retries(self.retries))
        _check_errors("on", self.on)
        _check_errors("give_up_on", self.give_up_on)

    @classmethod
    def exponential(
        cls,
        *,
        retries: int = 5,
        base: Duration = 5,
        factor: float = 2,
        cap: Duration = 3600,
        jitter: bool = True,
        on: Errors = (),
        give_up_on: Errors = (),
    ) -> "Retry":
        """Wait `base`, then `factor` times longer each time, never beyond `cap`.

        With jitter the wait is between half and all of that, so that jobs which failed together part ways.
        """
        if not isfinite(factor) or factor < 1:
            raise OptionInvalid(
                f"factor must be a number of at least 1, not {shown(factor)}: waits do not shrink."
            )
        first, last = milliseconds(base, "base"), milliseconds(cap, "cap")
        if last < first:
            raise OptionInvalid(
                f"cap ({cap!r}) is below base ({base!r}): no wait could be as long as the first one."
            )
        curve = Exponential(first, float(factor), last, jitter)
        return cls(retries=retries, curve=curve, on=on, give_up_on=give_up_on)

    @classmethod
    def linear(
        cls,
        *,
        minutes: float = 0,
        seconds: float = 0,
        retries: int = 3,
        on: Errors = (),
        give_up_on: Errors = (),
    ) -> "Retry":
        """Wait one, two, three … times as long: `minutes=5` gives 5, 10 and 15 minutes."""
        base = milliseconds(minutes * 60 + seconds, "minutes and seconds")
        if not base:
            raise OptionInvalid(
                "Retry.linear needs minutes= or seconds=; for no wait at all there is Retry.immediate()."
            )
        return cls(retries=retries, curve=Linear(base), on=on, give_up_on=give_up_on)

    @classmethod
    def immediate(cls, *, retries: int = 5, on: Errors = (), give_up_on: Errors = ()) -> "Retry":
        """Do not wait."""
        return cls(retries=retries, curve=Linear(0), on=on, give_up_on=give_up_on)

    @classmethod
    def never(cls) -> "Retry":
        """The first failure is final."""
        return cls(retries=0)

    @classmethod
    def attempts(cls, attempts: int, *, on: Errors = (), give_up_on: Errors = ()) -> "Retry":
        """Run at most so many times in all, with waits of e, e², e³ … e¹⁰ seconds and no jitter."""
        runs = plain_whole(attempts)
        if runs is None or runs < 1:
            raise OptionInvalid(
                f"attempts counts every run, the first one too, so it is at least 1, not {shown(attempts)}."
            )
        return cls(retries=runs - 1, curve=Steep(), on=on, give_up_on=give_up_on)

    @classmethod
    def delays(cls, delays: Sequence[Duration], *, on: Errors = (), give_up_on: Errors = ()) -> "Retry":
        """Exactly these waits, one retry each."""
        if not delays:
            raise OptionInvalid("Retry.delays needs at least one delay; for no retry there is Retry.never().")
        curve = Listed(tuple(milliseconds(delay, "a delay") for delay in delays))
        return cls(retries=len(curve.delays), curve=curve, on=on, give_up_on=give_up_on)

    @classmethod
    def custom(cls, fn: CustomDelay, *, retries: int, on: Errors = (), give_up_on: Errors = ()) -> "Retry":
        """Ask `fn(failures, error)`, with the number of failures before this one: a wait, or None to give up.

        Such a policy belongs on the task: a function cannot be stored with a job.
        """
        if not callable(fn):
            raise OptionInvalid(f"Retry.custom needs a function of (failures, error), not {shown(fn)}.")
        return cls(retries=retries, curve=Custom(fn), on=on, give_up_on=give_up_on)

    @property
    def max_failures(self) -> int:
        """How many failures end the job: the retries and the first run."""
        return self.retries + 1

    def with_retries(self, retries: int) -> "Retry":
        """The same waits and errors with another number of retries."""
        return structs.replace(self, retries=retries)

    def delay(
        self, failures: int, error: BaseException | None, random: Random, *, max_failures: int | None = None
    ) -> Millis | None:
        """How long to wait before the next run, or None to give up.

        `failures` is the count before this failure. A worker passes the job's own `max_failures`, which may
        differ from this policy's. What a custom function raises passes through, and so does the OptionInvalid
        that a delay without sense raises.
        """
        if failures + 1 >= (self.max_failures if max_failures is None else max_failures):
            return None
        if error is not None and not self.wants(error):
            return None
        return _delay(self.curve, failures, error, random)

    def wants(self, error: BaseException) -> bool:
        """Whether an error of this type is worth a retry."""
        return not isinstance(error, self.give_up_on) and (self.on == () or isinstance(error, self.on))

    @property
    def storable(self) -> bool:
        """Whether `dump` can write it."""
        return not isinstance(self.curve, Custom) and self.on == () and self.give_up_on == ()

    def dump(self) -> str:
        """The policy as text, to be stored with one job."""
        if isinstance(self.curve, Custom):
            raise OptionInvalid(
                "A policy with a function cannot be stored with a job: give it to the task instead."
            )
        if self.on != () or self.give_up_on != ():
            raise OptionInvalid(
                "A policy with on= or give_up_on= cannot be stored with a job: give it to the task instead."
            )
        return msgspec.json.encode(_Stored(self.retries, self.curve)).decode()

    @classmethod
    def load(cls, text: str) -> "Retry":
        """The policy of a stored text, or OptionInvalid when this release cannot read it."""
        try:
            stored = msgspec.json.decode(text, type=_Stored)
        except msgspec.DecodeError as error:
            raise OptionInvalid(f"The stored retry policy cannot be read ({error}): {text[:200]}") from error
        return cls(retries=stored.retries, curve=stored.curve)


def check_retries(retries: object) -> int:
    """The number of retries, if it can be one."""
    number = plain_whole(retries)
    if number is None or not 0 <= number <= MAX_RETRIES:
        raise OptionInvalid(f"retries must be a whole number from 0 to {MAX_RETRIES}, not {shown(retries)}.")
    return number


class _Stored(Struct, frozen=True):
    retries: int
    curve: StoredCurve


def _check_errors(option: str, errors: Errors) -> None:
    for kind in errors if isinstance(errors, tuple) else (errors,):
        if not _is_error(kind):
            raise OptionInvalid(f"{option} takes exception types, not {shown(kind)}.")


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _delay(curve: Curve, failures: int, error: BaseException | None, random: Random) -> Millis | None:
    match curve:
        case Exponential():
            share = random.uniform(0.5, 1) if curve.jitter else 1
            return round(_capped(curve, failures) * share)
        case Linear(base=base):
            return base * (failures + 1)
        case Steep():
            return round(exp(min(10, failures + 1)) * 1000)
        case Listed(delays=delays):
            return delays[min(failures, len(delays) - 1)]
        case Custom(fn=fn):
            answer = fn(failures, error)
            return None if answer is None else milliseconds(answer, "the delay of a custom retry policy")
        case _:
            assert_never(curve)


def _capped(curve: Exponential, failures: int) -> float:
    try:
        return min(curve.cap, curve.base * curve.factor**failures)
    except OverflowError:
        return curve.cap
