"""The command line: `shigoto [--app module:attr] [--url STORE] COMMAND`.

A command's module is imported when the command is used; `shigoto --help` prints from the table below and
imports none. A command returns its exit code, or nothing for 0. Errors become one line on standard error
here, and only here.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import StringIO, TextIOWrapper
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

from shigoto.cli.target import CommandTarget
from shigoto.model.errors import OptionInvalid, ScheduleInvalid, ShigotoError, nearest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMPLETE = "_SHIGOTO_COMPLETE"  # a shell asks how the words could go on
EPILOG = """\b
Exit codes:
  0    success
  1    error: what was asked for could not be done
  2    misuse: an unknown word, a wrong value, a settings file with a mistake
  130  interrupted by Ctrl-C
"""
MISUSED = 2
INTERRUPTED = 130  # what a shell reports of a program that Ctrl-C ended


class CommandEntry(NamedTuple):
    """Where a command lives and what the overview says of it."""

    section: str
    place: str
    summary: str


COMMANDS = {
    "demo": CommandEntry("Run", "demo:demo", "See jobs run: two workers on one SQLite file."),
    "worker": CommandEntry("Run", "worker:worker", "Run jobs until told to stop."),
    "scheduler": CommandEntry(
        "Run", "scheduler:scheduler", "Fire schedules until told to stop, without running jobs."
    ),
    "server": CommandEntry("Run", "server:server", "Serve the store over HTTP until told to stop."),
    "stats": CommandEntry("Look", "jobs:stats", "Count the jobs, by queue and state."),
    "list": CommandEntry("Look", "jobs:list_jobs", "Show the newest jobs of a state or filter."),
    "show": CommandEntry("Look", "show:show", "Show one job: its state, its attempts, its errors, its log."),
    "queues": CommandEntry(
        "Look", "queues:queues", "Show the queues: what they hold, and whether they are paused."
    ),
    "schedules": CommandEntry(
        "Look", "schedules:schedules", "Show the schedules, what became of their ticks, and change them."
    ),
    "workers": CommandEntry("Look", "jobs:workers", "Show the workers and their leases."),
    "top": CommandEntry("Look", "top:top", "Watch jobs, queues and workers live, and act by keys."),
    "audit": CommandEntry("Look", "audit:audit", "Show what operators have done: who, what, and when."),
    "tasks": CommandEntry(
        "Look", "tasks:tasks", "Show the tasks of the app, what runs them, and what they take."
    ),
    "enqueue": CommandEntry("Act", "jobs:enqueue", "Store a job."),
    "cancel": CommandEntry("Act", "jobs:cancel", "Cancel jobs, or ask running ones to stop."),
    "retry": CommandEntry("Act", "jobs:retry", "Make failed or cancelled jobs ready again."),
    "rerun": CommandEntry("Act", "jobs:rerun", "Make new jobs like ones that have ended."),
    "redrive": CommandEntry("Act", "bulk:redrive", "Retry all failed jobs that match."),
    "clear": CommandEntry("Act", "bulk:clear", "Delete the jobs of a state."),
    "pause": CommandEntry("Act", "queues:pause", "Let no worker start jobs of a queue."),
    "resume": CommandEntry("Act", "queues:resume", "Let workers start jobs of a queue again."),
    "token": CommandEntry("Keep", "token:token", "Make, show and revoke the tokens of the service."),
    "notify": CommandEntry("Keep", "notify:notify", "Show the rules of notifications, and try them."),
    "secrets": CommandEntry("Keep", "secrets:secrets", "Make keys, and encrypt anew what is stored."),
    "config": CommandEntry("Keep", "config:config", "Show the settings, and where they come from."),
    "completion": CommandEntry(
        "Keep", "completion:completion", "Print the script that makes a shell complete words."
    ),
    "migrate": CommandEntry("Keep", "store:migrate", "Create the store or bring its schema up to date."),
    "move": CommandEntry("Keep", "store:move", "Move all jobs to another store, while work goes on."),
    "export": CommandEntry("Keep", "store:export", "Write all jobs to a file, as lines of JSON."),
    "import": CommandEntry("Keep", "store:import_jobs", "Fill an empty store from such a file."),
    "sql": CommandEntry("Keep", "sql:sql", "Print SQL for whoever looks after the database."),
    "doctor": CommandEntry("Keep", "doctor:doctor", "Look for what is wrong, and say what helps."),
}


class CommandGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.place.partition(":")
        command: click.Command = getattr(import_module(f"shigoto.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            ctx.fail(f"There is no command {args[0]!r}.{nearest(args[0], tuple(COMMANDS))}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem[str]]":
        """The commands and options that begin so, without importing any."""
        from click.shell_completion import CompletionItem

        names = [name for name in COMMANDS if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=COMMANDS[name].summary) for name in names]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The overview, in sections, without importing anything."""
        for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
            rows = [(name, entry.summary) for name, entry in COMMANDS.items() if entry.section == section]
            with formatter.section(section):
                formatter.write_dl(rows, col_max=12)


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from shigoto.model.version import VERSION

    click.echo(f"shigoto {VERSION}")
    ctx.exit()


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EPILOG,
)
@click.option(
    "--app",
    metavar="MODULE:ATTR",
    help="Your app; without it, the built-in demo tasks.  [env var: SHIGOTO_APP]",
)
@click.option(
    "--url",
    metavar="STORE",
    help="The store: a file, or postgresql://USER@HOST/DATABASE.  [env var: SHIGOTO_URL]",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show it."
)
@click.pass_context
def program(ctx: click.Context, app: str | None, url: str | None) -> None:
    """Durable background jobs for Python.

    The store is taken from --url, the STORE of the command, $SHIGOTO_URL, url in shigoto.toml or the app, in
    this order, and is the file workers.db if none of them names one. `shigoto config --origin` shows it. Two
    different ones in one command are refused.
    """
    ctx.obj = CommandTarget(app, url)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0 is success, 1 an error, 2 a misuse, 130 Ctrl-C.

    A job that is stored is a success, even if there was no way to say so on standard output: a script that
    tries again after an error would store it twice.
    """
    try:
        _fill_closed_streams()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal that lacks a letter is no reason to fail
        if COMPLETE in os.environ:
            from shigoto.cli.completion import answer

            sys.exit(answer(program))
        sys.exit(execute(list(sys.argv[1:] if arguments is None else arguments)))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def execute(words: list[str]) -> int:
    as_json = "--json" in words
    try:
        code: object = program.main(words, prog_name="shigoto", standalone_mode=False)
    except click.ClickException as error:
        if as_json:
            _complain("CLI.USAGE", error.format_message(), as_json=True)
        else:
            shown = StringIO()
            error.show(shown)
            click.echo(_printable(shown.getvalue()), err=True, nl=False)
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except ShigotoError as error:
        field = {"field": error.field} if isinstance(error, ScheduleInvalid) else {}
        _complain(error.code, str(error), as_json=as_json, **field)
        return MISUSED if isinstance(error, OptionInvalid | ScheduleInvalid) else 1
    except OSError as error:  # a full disk under standard output, a folder that went away
        from shigoto.cli.output import discard_output

        discard_output()
        _complain("CLI.SYSTEM", _refusal(error), as_json=as_json)
        return 1
    return code if isinstance(code, int) else 0


def _fill_closed_streams() -> None:
    """Whoever closes a stream wants to see nothing; Python has None in its place, which cannot be written to."""
    missing: list[str] = [name for name in ("stdout", "stderr") if getattr(sys, name) is None]
    for name in missing:
        setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))


def _refusal(error: OSError) -> str:
    """What the system refused; whatever concerns the store is said by the engine before it comes to this."""
    if error.filename is None:
        return f"Standard output cannot be written: {error.strerror or error}."
    return f"{error.filename} cannot be used: {error.strerror}."


def _complain(code: str, text: str, *, as_json: bool, **more: str) -> None:
    if as_json:
        import json

        click.echo(json.dumps({"error": {"code": code, "message": text, **more}}), err=True)
    else:
        click.echo(f"Error [{code}]: {_printable(text)}", err=True)


def _printable(text: str) -> str:
    """Messages quote what they were given, and that may hold what a terminal would take for a command."""
    from shigoto.cli.output import one_line

    return "\n".join(one_line(line) for line in text.split("\n"))
