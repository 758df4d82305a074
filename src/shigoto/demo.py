"""Tasks to try things out with: the four built-in ones, and those of `shigoto demo`.

The built-in tasks do nothing but take their time, and write down what they would have done. Commands use them when no
--app is given. All four take the same payload, all of it optional, so that `shigoto enqueue TASK MESSAGE` fits every
one. What they record is the job's result and its log, both in `shigoto show`. A payload that makes no sense fails at
once. What may pass by itself is tried again after 5, 10 and 15 minutes; to see that, notify an address that ends in
`.invalid`.

The tasks of `shigoto demo` are of every kind. Nothing is left to chance: the same beat always brings the same jobs.

A task belongs to one app. So the apps are made by functions, one for each store: `--app shigoto.demo:app` calls them.
"""

import hashlib
import inspect
import logging
from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, TypeVar

from msgspec import Struct

from shigoto.app import Shigoto
from shigoto.context import Context, Fail, current
from shigoto.enqueue import Call
from shigoto.retry import Retry

R = TypeVar("R")

# Not one of ours: what those write is about jobs, not by them, and is not kept with the job.
logger = logging.getLogger("demo")

MODES = ("normal", "strict")
RETRY = Retry.linear(minutes=5, retries=3)
EVERYBODY = "everybody@example.com"
UNREACHABLE = ".invalid"
BEAT = 0.1  # seconds between two entries of the programme
BURST = 150  # jobs

Calls = list[Call[Any]]


class Payload(Struct, frozen=True):
    """What a job of a built-in task may carry; nothing of it is needed, unless `validation_mode` is strict."""

    user_id: int | None = None
    user_data: dict[str, Any] | None = None
    additional_properties: dict[str, Any] | None = None
    message: str = ""
    recipients: list[str] | None = None
    validation_mode: str = ""

    @property
    def values(self) -> dict[str, Any]:
        return {**(self.user_data or {}), **(self.additional_properties or {})}

    @property
    def mode(self) -> str:
        return self.validation_mode or "normal"

    def check(self, *needed: str) -> None:
        """Raise Fail, which is never retried, for a mode that does not exist; if strict, for empty fields too."""
        if self.mode not in MODES:
            raise Fail(f"there is no validation mode {self.mode!r}: it is {' or '.join(MODES)}")
        missing = [field for field in needed if getattr(self, field) in (None, "", [], {})]
        if self.mode == "strict" and missing:
            raise Fail(f"in strict mode {' and '.join(missing)} must be given")


Handler = Callable[[Payload], Coroutine[Any, Any, R]]


def by_field(handler: Handler[R]) -> Callable[..., Coroutine[Any, Any, R]]:
    """The handler as a function of the fields: what a task stores is an object of its parameters."""

    async def task(
        user_id: int | None = None,
        user_data: dict[str, Any] | None = None,
        additional_properties: dict[str, Any] | None = None,
        message: str = "",
        recipients: list[str] | None = None,
        validation_mode: str = "",
    ) -> R:
        return await handler(
            Payload(user_id, user_data, additional_properties, message, recipients, validation_mode)
        )

    # By its names a child process finds it, and people know it; but its parameters are the fields, not the handler's.
    signature = inspect.signature(task).replace(return_annotation=handler.__annotations__["return"])
    update_wrapper(task, handler)
    task.__dict__["__signature__"] = signature
    return task


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
    handlers: list[Handler[Any]] = [user_created, data_analysis, email_notification, data_export]
    for handler in handlers:
        app.task(retry=RETRY)(by_field(handler))


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


async def demo_add(a: int, b: int) -> int:
    """A short async task, one of many that run at once on the event loop."""
    import asyncio

    await asyncio.sleep(0.02)
    return a + b


def demo_hash(text: str) -> str:
    """A plain function that keeps a processor busy: it runs in a thread."""
    return hashlib.pbkdf2_hmac("sha256", text.encode(), b"shigoto", 20_000).hex()[:12]


async def demo_report(ctx: Context, pages: int) -> str:
    """A longer task that tells how far it is."""
    import asyncio

    for page in range(1, pages + 1):
        await asyncio.sleep(0.25)
        ctx.progress(page / pages, f"page {page} of {pages}")
    return f"{pages} pages"


async def demo_flaky(ctx: Context, service: str) -> str:
    """A task that fails the first time, as if a server were down for a moment; its retry succeeds."""
    if ctx.attempt == 1:
        raise ConnectionError(f"{service} did not answer")
    return f"{service} answered"


async def demo_reminder(text: str) -> str:
    """A task that is enqueued now to run later."""
    return text


class DemoTasks:
    """The demo's tasks, declared on one app."""

    def __init__(self, app: Shigoto) -> None:
        self.add = app.task(demo_add)
        self.hash = app.task(demo_hash)
        self.report = app.task(queue="reports")(demo_report)
        self.flaky = app.task(retry=Retry.delays([0.8, 0.8]))(demo_flaky)
        self.reminder = app.task(demo_reminder)
        self.telling = {self.report.name, self.flaky.name, self.reminder.name}

    def at(self, beat: int) -> Calls:
        """The jobs of one beat: about five, now and then a burst; all kinds appear at the first."""
        burst = self.add.using(priority=-5)
        calls: Calls = [self.add.call(beat, n) for n in range(3)]
        if beat % 20 == 10:
            calls += [burst.call(beat, n) for n in range(BURST)]
        if beat % 2 == 0:
            calls.append(self.hash.call(f"text {beat}"))
        if beat % 5 == 0:
            calls.append(self.add.using(priority=10, tags=["urgent"]).call(beat, 100))
        if beat % 6 == 0:
            calls.append(self.flaky.call("api.example.com"))
        if beat % 8 == 0:
            calls.append(self.reminder.using(delay=1.5).call("Time for tea"))
        if beat % 10 == 0:
            calls.append(self.report.using(priority=-1).call(pages=12 + beat % 3))
        return calls


def app(url: str | None = None) -> Shigoto:
    """An app with the built-in tasks."""
    made = Shigoto(url)
    declare(made)
    return made


def stage(url: str | None = None) -> Shigoto:
    """An app with the tasks of `shigoto demo`."""
    made = Shigoto(url)
    DemoTasks(made)
    return made
