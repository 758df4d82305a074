"""The group of commands: `shigoto schedules`, and `shigoto schedules VERB`."""

from collections.abc import Iterator

import click

from shigoto.cli.schedules import acting, looking
from shigoto.cli.target import looks_like_store, takes_target
from shigoto.model.errors import nearest


class Verbs(click.Group):
    """The commands below; without one of them, the list."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, those that look before those that act."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words, with the command that is meant if none is named."""
        words = iter(args)
        first = next((word for word in words if not _is_option(word, words)), None)
        asks_for_help = bool({"-h", "--help"} & set(args))
        if not asks_for_help and not ctx.resilient_parsing and (first is None or _is_store(first, self)):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first word, or a usage error that suggests one."""
        if args and args[0] not in self.commands and not ctx.resilient_parsing:
            ctx.fail(f"There is no command 'schedules {args[0]}'.{nearest(args[0], tuple(self.commands))}")
        return super().resolve_command(ctx, args)


def _is_option(word: str, rest: Iterator[str]) -> bool:
    """Whether a word is an option; if it is one that takes a value, that is taken."""
    if word in ("--app", "--url"):
        next(rest, None)
    return word.startswith("-")


def _is_store(word: str, group: click.Group) -> bool:
    return word not in group.commands and looks_like_store(word)


@click.group(cls=Verbs)
@takes_target
def schedules(ctx: click.Context) -> None:
    """Show the schedules of the store, or what is done by one of the commands below.

    A schedule makes a job at each of its ticks. It is declared in code, with @app.cron, or added here. Every
    worker fires ticks, and each becomes one job however many workers there are.

    \b
    Examples:
      shigoto schedules
      shigoto schedules add weekly send_report '{"to": "all"}' --cron '0 7 * * MON' --tz Europe/Berlin
      shigoto schedules preview weekly --from 2030-03-01 --to 2030-04-30
      shigoto schedules history weekly
    """


for verb in (
    looking.list_schedules,
    looking.show,
    looking.preview,
    looking.history,
    acting.add,
    acting.update,
    acting.remove,
    acting.pause,
    acting.resume,
    acting.run_now,
    acting.backfill,
):
    schedules.add_command(verb)
