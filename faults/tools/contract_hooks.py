"""What schemathesis is told besides the document, in its own process ($SCHEMATHESIS_HOOKS).

    waits      are short: a wait of a minute is as good as one of a moment to show that an answer is as described
    tasks      are often those that the server knows, or nearly every job would be refused for that alone
    workers    are often those that it has registered, and jobs those that they hold
    strangers  now and then a job of somebody else is asked for, by the ids in $STRANGERS, and must not be found

Only what is valid is replaced, by what is valid as well, so that what a request shows stays the same.
"""

import os
from random import Random
from typing import Any
from uuid import UUID

import schemathesis

LONGEST = 0.2  # seconds
STRANGERS = tuple(filter(None, os.environ.get("STRANGERS", "").split(",")))
TASK = os.environ.get("TASK", "echo")
OFTEN = 0.5
FOUND = 400  # and above: not found
MOST = 200  # of what is remembered

random = Random(os.environ.get("SEED", "0"))
workers: list[str] = []
held: list[tuple[str, str, int]] = []  # worker, job, token


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Put in what the server knows."""
    asked, body = case.path_parameters or {}, case.body if isinstance(case.body, dict) else {}
    for part in (case.query or {}, body):
        if _is_long(part.get("wait")):
            part["wait"] = LONGEST
    if isinstance(body.get("task"), str) and random.random() < OFTEN:
        body |= {"task": TASK, "payload": {"value": 1}}
    if _is_id(asked.get("worker")) and workers and random.random() < OFTEN:
        _be_a_worker(asked, body)
    elif STRANGERS and _is_id(asked.get("id")) and random.random() < OFTEN:
        asked["id"] = random.choice(STRANGERS)


def _be_a_worker(asked: dict[str, Any], body: dict[str, Any]) -> None:
    asked["worker"] = random.choice(workers)
    if held and _is_id(asked.get("id")):
        asked["worker"], asked["id"], token = random.choice(held)
        if isinstance(body.get("token"), int):
            body["token"] = token


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    """Remember what the server tells of workers and their jobs."""
    if response.status_code >= FOUND or len(workers) > MOST or len(held) > MOST:
        return
    told = _told(response)
    if "beat_every" in told:
        workers.append(told["worker"])
    worker = (case.path_parameters or {}).get("worker")
    if worker in workers:
        held.extend((worker, job["id"], job["token"]) for job in told.get("jobs", ()))


@schemathesis.check
def not_a_stranger(context: Any, response: Any, case: Any) -> None:
    """Whoever asks for a job of somebody else gets nothing."""
    asked = (case.path_parameters or {}).get("id")
    if asked in STRANGERS and response.status_code < FOUND:
        raise AssertionError(f"A job of somebody else was found: {response.status_code} for {asked}.")
    if any(id in response.text for id in STRANGERS if id != asked):
        raise AssertionError("An answer names a job of somebody else.")


def _told(response: Any) -> dict[str, Any]:
    try:
        told = response.json()
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _is_long(wait: object) -> bool:
    if isinstance(wait, bool) or not isinstance(wait, int | float | str):
        return False
    try:
        return LONGEST < float(wait) <= 60  # in an address it may be written out already
    except ValueError:
        return False


def _is_id(text: object) -> bool:
    try:
        return isinstance(text, str) and bool(UUID(text))
    except ValueError:
        return False
