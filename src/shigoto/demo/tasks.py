"""The built-in tasks: they do nothing but take their time, and say what they would do.

All four take the same arguments, all optional, so that `shigoto enqueue TASK MESSAGE` fits every one.
"""

import logging
from typing import Any

from msgspec import Struct

from shigoto.app import Shigoto
from shigoto.context import current
from shigoto.retry import Retry

logger = logging.getLogger("shigoto.demo")

RETRY = Retry.linear(minutes=5, retries=3)


class Profile(Struct):
    """What is known of a new user, from what came with the sign-up."""

    user_id: int | None
    hobby: str
    location: str
    score: int


class Analysis(Struct):
    """The outcome of an analysis."""

    user_id: int | None
    values: int
    validation_mode: str


def declare(app: Shigoto) -> None:
    """Make the four tasks the app's own."""
    for function in (user_created, data_analysis, email_notification, data_export):
        app.task(retry=RETRY)(function)


async def user_created(
    user_id: int | None = None,
    user_data: dict[str, Any] | None = None,
    additional_properties: dict[str, Any] | None = None,
    message: str = "",
    recipients: list[str] | None = None,
    validation_mode: str = "",
) -> Profile:
    """Welcome a new user: a mail, a sign-up to count, a profile to begin with. Half a second."""
    properties = additional_properties or {}
    profile = Profile(
        user_id=user_id,
        hobby=str(properties.get("hobby", "")),
        location=str(properties.get("location", "")),
        score=int(properties.get("score", 0)),
    )
    logger.info("Sending a welcome mail to user %s: %s", user_id, message or "welcome!")
    await _takes(0.3)
    logger.info("Counting a sign-up from %s", profile.location or "somewhere")
    await _takes(0.1)
    logger.info("Setting up the profile of user %s: %s", user_id, profile)
    await _takes(0.1)
    return profile


async def data_analysis(
    user_id: int | None = None,
    user_data: dict[str, Any] | None = None,
    additional_properties: dict[str, Any] | None = None,
    message: str = "",
    recipients: list[str] | None = None,
    validation_mode: str = "",
) -> Analysis:
    """Analyse what is given, at length: two seconds."""
    values = {**(user_data or {}), **(additional_properties or {})}
    logger.info("Analysing %d values: %s", len(values), message)
    for step in range(1, 5):
        await _takes(0.5)
        current().progress(step / 4, f"Step {step} of 4")
    analysis = Analysis(user_id=user_id, values=len(values), validation_mode=validation_mode or "normal")
    logger.info("The analysis gave %s", analysis)
    return analysis


async def email_notification(
    user_id: int | None = None,
    user_data: dict[str, Any] | None = None,
    additional_properties: dict[str, Any] | None = None,
    message: str = "",
    recipients: list[str] | None = None,
    validation_mode: str = "",
) -> int:
    """Send a message to all recipients, and tell how many there were. A third of a second."""
    everybody = recipients or ["everybody@example.com"]
    await _takes(0.3)
    for recipient in everybody:
        logger.info("Delivered to %s: %s", recipient, message)
    return len(everybody)


async def data_export(
    user_id: int | None = None,
    user_data: dict[str, Any] | None = None,
    additional_properties: dict[str, Any] | None = None,
    message: str = "",
    recipients: list[str] | None = None,
    validation_mode: str = "",
) -> str:
    """Export what is given, and tell the name of the file that would hold it. One second."""
    name = f"export-{'all' if user_id is None else user_id}.json"
    logger.info("Exporting %d values to %s: %s", len(user_data or {}), name, message)
    await _takes(1.0)
    logger.info("Exported %s", name)
    return name


async def _takes(seconds: float) -> None:
    # A program that only enqueues these tasks has no use for an event loop.
    import asyncio

    await asyncio.sleep(seconds)
