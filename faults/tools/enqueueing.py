"""Enqueues from the experiment's own process, and writes down what was tried and what was acknowledged."""

from collections.abc import Sequence
from typing import Any

from faults.stage import Stage
from shigoto import Task
from shigoto.model.ids import uuid7

MOST_AT_ONCE = 500

Wish = tuple[Task[..., Any], dict[str, Any]]  # a task, with the options of the call, and the arguments


def enqueue(stage: Stage, wishes: Sequence[Wish]) -> list[str]:
    """The ids of the new jobs, in the order of the wishes."""
    ids: list[str] = []
    for first in range(0, len(wishes), MOST_AT_ONCE):
        some = [(uuid7(), task, arguments) for task, arguments in wishes[first : first + MOST_AT_ONCE]]
        for id, _, _ in some:
            stage.pen.write("try", job=str(id))
        stage.app.enqueue_many([task.using(id=id).call(**arguments) for id, task, arguments in some])
        for id, _, _ in some:
            stage.pen.write("ok", job=str(id))
        ids += [str(id) for id, _, _ in some]
    return ids
