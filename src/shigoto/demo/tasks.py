"""The built-in tasks: they do nothing but take their time, and write down what they would have done.

All four take the same payload, all of it optional, so that `shigoto enqueue TASK MESSAGE` fits every one. What they
record is the job's result and its log, both in `shigoto show`.

A payload that makes no sense fails at once. What may pass by itself is tried again after 5, 10 and 15 minutes; to see
that, notify an address that ends in `.invalid`.
"""

import logging
from typing import Any

from msgspec import Struct

from shigoto.app import Shigoto
from shigoto.context import Fail, current
from shigoto.demo.payload import Payload, by_field
from shigoto.retry import Retry

# Not one of ours: what those write is about jobs, not by them, and is not kept with the job.
logger = logging.getLogger("demo")

RETRY = Retry.linear(minutes=5, retries=3)
EVERYBODY = "everybody@example.com"
UNREACHABLE = ".invalid"


class Profile(Struct):
    """What is known of a new user, from what came with the sign-up."""

    user_id: int | None
    hobby: str
    location: str
    score: int | float


class SignUp(Struct):
    """One sign-up, for the statistics."""

    user_id: int | None
    location: str


class Welcome(Struct):
    """What was done for a new user."""

    mail: str
    sign_up: SignUp
    profile: Profile


class Analysis(Struct):
    """The outcome of an analysis."""

    user_id: int | None
    values: int
    numbers: int
    mean: float | None
    validation_mode: str


class Delivery(Struct):
    """One mail that went out."""

    recipient: str
    message: str


class Export(Struct):
    """The file that would hold what was exported."""

    file: str
    values: int


def declare(app: Shigoto) -> None:
    """Make the four tasks the app's own."""
    app.task(retry=RETRY)(by_field(user_created))
    app.task(retry=RETRY)(by_field(data_analysis))
    app.task(retry=RETRY)(by_field(email_notification))
    app.task(retry=RETRY)(by_field(data_export))


async def user_created(payload: Payload) -> Welcome:
    """Welcome a new user: a mail, a sign-up to count, a profile to begin with. Half a second."""
    payload.check("user_id")
    profile = _profile(payload)
    user = "a new user" if payload.user_id is None else f"user {payload.user_id}"
    mail = payload.message or "welcome!"
    logger.info("Sending a welcome mail to %s: %s", user, mail)
    await _takes(0.3)
    sign_up = SignUp(payload.user_id, profile.location)
    logger.info("Counting a sign-up from %s", profile.location or "somewhere")
    await _takes(0.1)
    logger.info("Setting up the profile of %s: %s", user, profile)
    await _takes(0.1)
    return Welcome(mail, sign_up, profile)


async def data_analysis(payload: Payload) -> Analysis:
    """Analyse what is given, at length: two seconds."""
    payload.check("user_data")
    values = payload.values
    logger.info("Analysing %d values: %s", len(values), payload.message)
    for step in range(1, 5):
        await _takes(0.5)
        current().progress(step / 4, f"Step {step} of 4")
    numbers = [value for value in values.values() if _is_number(value)]
    mean = sum(numbers) / len(numbers) if numbers else None
    analysis = Analysis(payload.user_id, len(values), len(numbers), mean, payload.mode)
    logger.info("The analysis gave %s", analysis)
    return analysis


async def email_notification(payload: Payload) -> list[Delivery]:
    """Send a message to all recipients, and tell what was delivered. A third of a second."""
    payload.check("recipients", "message")
    recipients = payload.recipients or [EVERYBODY]
    if wrong := [recipient for recipient in recipients if "@" not in recipient]:
        raise Fail(f"not an e-mail address: {', '.join(wrong)}")
    await _takes(0.3)
    if any(recipient.endswith(UNREACHABLE) for recipient in recipients):
        raise TimeoutError("connection timeout")
    for recipient in recipients:
        logger.info("Delivered to %s: %s", recipient, payload.message)
    return [Delivery(recipient, payload.message) for recipient in recipients]


async def data_export(payload: Payload) -> Export:
    """Export what is given, and tell the name of the file that would hold it. One second."""
    payload.check("user_id")
    export = Export(
        f"export-{'all' if payload.user_id is None else payload.user_id}.json", len(payload.values)
    )
    logger.info("Would export %d values to %s: %s", export.values, export.file, payload.message)
    await _takes(1.0)
    logger.info("Would have exported %s", export.file)
    return export


def _profile(payload: Payload) -> Profile:
    properties = payload.additional_properties or {}
    score = properties.get("score", 0)
    if not _is_number(score):
        raise Fail(f"the score must be a number, not {score!r}")
    return Profile(
        user_id=payload.user_id,
        hobby=str(properties.get("hobby", "")),
        location=str(properties.get("location", "")),
        score=score,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


async def _takes(seconds: float) -> None:
    # A program that only enqueues these tasks has no use for an event loop.
    import asyncio

    await asyncio.sleep(seconds)
