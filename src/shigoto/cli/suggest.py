"""How a parameter says what a shell may suggest for it, before anything is imported that could find that out."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Suggestion = Literal[
    "files",
    "tasks",
    "queues",
    "store_then_task",
    "store_then_filters",
    "store_then_queues",
    "store_then_schedules",
]


def suggest(what: Suggestion) -> "Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]":
    """For `shell_complete=`: asks the function of this name in `completion.py` when a shell asks."""

    def ask(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> "list[CompletionItem[str]]":
        from shigoto.cli import completion

        items: list[CompletionItem[str]] = getattr(completion, what)(ctx, incomplete)
        return items

    return ask
