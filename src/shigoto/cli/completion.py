"""Shell completion: the scripts that `shigoto completion` prints, and what they ask for while somebody types.

Completing hurts nobody: no store is created, no error is shown, and what cannot be found out within a second is not
suggested. A key that is pressed in a strange folder runs none of its code: an app is imported only if whoever sits
there has named it, by --app or $SHIGOTO_APP. Of one that a settings file names, the workers in the store know the
tasks.
"""

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, get_args

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete
from click.shell_completion import split_arg_string as split_words

from shigoto.cli import COMPLETE
from shigoto.cli.target import CommandTarget, existing, silence, split_store, target_of

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine

Items = list["CompletionItem[str]"]

LINE = "_SHIGOTO_LINE"
ANSWER_WITHIN = 1.0  # seconds that a store has
SINCE = ("10m", "1h", "1d", "7d")

# Bash ends words at ':' and '=' too. The program is given the whole line, answers with whole words, and what
# stands before the part that bash is going to replace is cut off here.
BASH = """\
_shigoto_completion() {
    local line=${COMP_LINE:0:COMP_POINT} kind value
    local word=${line##*[[:space:]]}
    local before=${word%"$2"}
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            plain) COMPREPLY+=("${value#"$before"}") ;;
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
        esac
    done < <(_SHIGOTO_COMPLETE=bash_complete _SHIGOTO_LINE=$line "$1" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[:.] ]]; then
        compopt -o nospace
    fi
} 2>/dev/null

complete -o nosort -F _shigoto_completion shigoto
"""


class Bash(BashComplete):
    """Completion for bash, with words that have colons in them."""

    def source(self) -> str:
        return BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """The complete words after the program's name, and the one that is being written."""
        line = os.environ.get(LINE, "")
        words = split_words(line)
        incomplete = words.pop() if words and not line[-1].isspace() else ""
        return words[1:], incomplete


SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": ZshComplete, "fish": FishComplete}
INSTALL = {
    "bash": (
        "# Completion of shigoto for bash 4.4 and later. For every new shell, put this into ~/.bashrc:",
        '#   eval "$(shigoto completion bash)"',
    ),
    "zsh": (
        "# Completion of shigoto for zsh. For every new shell, put this into ~/.zshrc, after compinit:",
        '#   eval "$(shigoto completion zsh)"',
    ),
    "fish": (
        "# Completion of shigoto for fish. For every new shell:",
        "#   shigoto completion fish > ~/.config/fish/completions/shigoto.fish",
    ),
}

NAME_IT = (
    "# Set SHIGOTO_APP or give --app for tasks and queues of your app; that of shigoto.toml is not imported."
)


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)), required=False)
@click.pass_context
def completion(ctx: click.Context, shell: str | None) -> None:
    """Print the script that makes a shell complete commands, options, states, tasks and queues.

    Without SHELL it is the one of $SHELL. For tasks and queues of your app, set SHIGOTO_APP or give --app: an
    app that only shigoto.toml names is not imported, so that no code of a folder runs when Tab is pressed.

    \b
    Examples:
      eval "$(shigoto completion bash)"
      shigoto completion fish > ~/.config/fish/completions/shigoto.fish
    """
    shell = shell or PurePath(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise click.UsageError(f"Which shell? Write one of {', '.join(SHELLS)}.", ctx)
    script = SHELLS[shell](ctx.command, {}, "shigoto", COMPLETE).source()
    # The first line of a script for zsh says what it completes, and must stay the first.
    first, rest = script.split("\n", 1) if script.startswith("#compdef") else ("", script)
    click.echo("\n".join([*([first] if first else []), *INSTALL[shell], NAME_IT, rest]), nl=False)


def answer(program: click.Command) -> int:
    """Print what the words of the environment may go on with, as the script in the shell expects it."""
    shell, _, _ = os.environ.pop(COMPLETE).partition("_")
    text = ""
    with suppress(Exception), silence():
        text = SHELLS[shell](program, {}, "shigoto", COMPLETE).complete()
    click.echo(text.encode())
    return 0


def files(ctx: click.Context, incomplete: str) -> Items:
    """A file where a store may stand; of several words that is the first."""
    return [] if ctx.params.get("words") else [CompletionItem(incomplete, type="file")]


def tasks(ctx: click.Context, incomplete: str) -> Items:
    """The tasks of the app, or of the workers if the app is not to be imported."""
    return _matching(_tasks(ctx), incomplete)


def queues(ctx: click.Context, incomplete: str) -> Items:
    """The queues of the store; after a comma, one more of them."""
    before, comma, last = incomplete.rpartition(",")
    return _matching((f"{before}{comma}{name}" for name in _queues(ctx)), f"{before}{comma}{last}")


def store_then_task(ctx: click.Context, incomplete: str) -> Items:
    """For `enqueue`: a store or a task, and then its arguments, of which nothing is known here."""
    _, words = split_store(ctx.params.get("words") or ())
    return [] if words else [*tasks(ctx, incomplete), *files(ctx, incomplete)]


def store_then_queues(ctx: click.Context, incomplete: str) -> Items:
    """For `pause` and `resume`: a store, and queues."""
    return [*queues(ctx, incomplete), *files(ctx, incomplete)]


def store_then_filters(ctx: click.Context, incomplete: str) -> Items:
    """For `list` and its like: a store, states, and what jobs can be told apart by."""
    qualifier, colon, _ = incomplete.partition(":")
    if colon:
        return _matching((f"{qualifier}:{value}" for value in _values(ctx, qualifier)), incomplete)
    from shigoto.filters import QUALIFIERS, StateName

    known = [*get_args(StateName), *("args." if name == "args" else f"{name}:" for name in QUALIFIERS)]
    return [*_matching(known, incomplete), *files(ctx, incomplete)]


def _tasks(ctx: click.Context) -> Iterable[str]:
    with suppress(Exception):
        target = target_of(ctx)
        if _is_named(target):
            return tuple(target.load().tasks)
        return _asked(
            ctx,
            lambda engine: sorted({task for worker in engine.run(engine.workers()) for task in worker.tasks}),
        )
    return ()


def _is_named(target: CommandTarget) -> bool:
    """Whether whoever sits there has said which app it is, or that it is none."""
    return target.find_app().origin.kind != "file"


def _queues(ctx: click.Context) -> Iterable[str]:
    return _asked(ctx, lambda engine: sorted(engine.run(engine.stats()).keys()))


def _values(ctx: click.Context, qualifier: str) -> Iterable[str]:
    """What may stand behind the colon of a filter; of jobs' own words nothing is known here."""
    from shigoto.filters import KindName, StateName

    match qualifier:
        case "state":
            return get_args(StateName)
        case "kind":
            return get_args(KindName)
        case "queue":
            return _queues(ctx)
        case "task":
            return _tasks(ctx)
        case _:
            return SINCE if qualifier == "since" else ()


def _asked(ctx: click.Context, question: "Callable[[Engine], Iterable[str]]") -> Iterable[str]:
    """What the store that the words so far mean answers; nothing if there is none, or it takes too long.

    In a thread, which ends with the process: no deadline of any engine's, or of the system's, is short enough for
    somebody who has pressed a key.
    """
    answers: list[Iterable[str]] = []
    with suppress(Exception):
        engine = _store(ctx)

        def ask() -> None:
            with suppress(Exception), closing(existing(engine)):
                answers.append(question(engine))

        thread = threading.Thread(target=ask, name="shigoto-completion", daemon=True)
        thread.start()
        thread.join(ANSWER_WITHIN)
    return answers[0] if answers else ()


def _store(ctx: click.Context) -> "Engine":
    """The store that the words so far mean, which may not be there; an error if nobody knows where it would be."""
    from shigoto.app import open_store
    from shigoto.cli.arguments import split_filter

    word = ctx.params.get("store") or split_filter(ctx.params.get("words") or ())[0]
    target = target_of(ctx)
    if _is_named(target):
        return target.store(word)
    address = target.address(word)
    if address is None:  # only the app would know, and it is not looked at
        raise LookupError
    return open_store(address)


def _matching(values: Iterable[str], incomplete: str) -> Items:
    return [CompletionItem(value) for value in values if value.startswith(incomplete)]
