"""Tasks that are given secrets and let them slip wherever a handler can: in errors, causes, progress and lines."""

import logging
import os
import signal
from typing import Any

from shigoto import Cancel, Context, Secret, Shigoto
from shigoto.notify import Log, Mail, Webhook, on_failure

app = Shigoto(notify=[on_failure(to=[Mail(), Webhook("$CANARY_HOOK", internal=True), Log()])])

logger = logging.getLogger("secretive")


@app.task(retries=0)
def login(
    ctx: Context, user: str, token: Secret[str], profile: Secret[dict[str, str]], code: Secret[int]
) -> None:
    """Everything that it was told in confidence stands in what it raises, and in what that was caused by."""
    _local = os.environ["CANARY_LOCAL"]
    ctx.progress(0.5, f"{user} has {token}")
    ctx.log(f"{user} has {profile!r} and {code}")
    logger.warning("%s has %s", user, token)
    try:
        raise KeyError(profile["pin"])
    except KeyError as error:
        raise ValueError(f"{token!r} and {code} are not for {user}") from error


@app.task(retries=0, encrypt=False)
def plain_login(user: str, token: Secret[str]) -> None:
    """The same for a job that is stored in clear text."""
    logger.error("%s has %s", user, token)
    raise ValueError(f"{token!r} is not for {user}")


@app.task(retries=1)
async def charge(ctx: Context, card: str, owner: dict[str, Any]) -> dict[str, Any]:
    """Encrypted as a whole: nothing of it is annotated."""
    ctx.progress(0.1, card)
    ctx.log(f"charging {card}")
    await ctx.acheckpoint({"card": card})
    if owner.get("fails"):
        raise LookupError(card, owner)
    return {"charged": card, "of": owner}


@app.task(encrypt=False)
def remember(password: str, headers: dict[str, str], user: str = "ada") -> str:
    """What is secret by its name alone."""
    return user


@app.task(retries=0, encrypt=False)
def connect(variable: str) -> None:
    """What libraries do: they quote what they were given."""
    raise ConnectionError(os.environ[variable])


@app.task(retries=0, encrypt=False)
def visit(user: str, token: Secret[str]) -> None:
    """Run by a worker that is not ours."""


@app.task(retries=0)
def travel(user: str) -> None:
    """The same, encrypted."""


@app.task(retries=0)
def give_up(token: Secret[str]) -> None:
    raise Cancel(f"{token} is known already")


@app.task(retries=0, executor="process", max_crashes=1)
def crash(ctx: Context, token: Secret[str]) -> None:
    """What a crash reports are the last lines, too."""
    ctx.log(f"about to crash with {token}")
    logger.warning("about to crash with %s", token)
    os.kill(os.getpid(), signal.SIGKILL)
