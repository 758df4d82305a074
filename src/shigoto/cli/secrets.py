"""Keys: making one, and encrypting anew what is stored."""

from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from shigoto.cli import output
from shigoto.cli.confirm import StatusLine
from shigoto.cli.target import CommandTarget, answers, suggest, target_of
from shigoto.model.errors import EncryptionKeyMissing

if TYPE_CHECKING:
    from shigoto.encryption import Encryption
    from shigoto.rotation import Rotated


@click.group()
def secrets() -> None:
    """Make keys, and encrypt anew what is stored.

    What jobs carry and say is encrypted if the app has keys: by Shigoto(encryption=…), $SHIGOTO_ENCRYPTION_KEYS or
    $SHIGOTO_ENCRYPTION_KEY_FILE. Keys are never taken from the command line, where others could see them.
    """


@secrets.command()
@click.argument("key_id", metavar="[ID]", required=False)
def key(key_id: str | None) -> None:
    """Print a new key, as it is written into a file of keys or into the variable.

    Its ID is stored with every value; without one it is the day of today.

    \b
    Examples:
      shigoto secrets key >> keys
      shigoto secrets key 2030-spring >> keys
    """
    from shigoto.encryption import new_key

    click.echo(new_key(key_id or datetime.now(UTC).strftime("%Y-%m-%d")))


@secrets.command()
@click.argument("store", metavar="[STORE]", required=False, shell_complete=suggest("files"))
@answers
def rotate(ctx: click.Context, store: str | None, *, as_json: bool) -> int:
    """Encrypt anew, by the current key, what other keys have encrypted.

    Workers and producers work on meanwhile. If it is interrupted, run it again. First every process must have the new
    key, then it becomes the current one everywhere, then this; and then the old one can be forgotten, if nothing is
    left that needs it. Exit code 1 says that something is left, because its key is not there, or because somebody still
    encrypts by another one.

    \b
    Examples:
      SHIGOTO_ENCRYPTION_KEY_FILE=keys shigoto secrets rotate jobs.db
      shigoto --app shop:app secrets rotate
    """
    from shigoto.cli.daemon import signals_interrupt
    from shigoto.rotation import Rotation

    target = target_of(ctx)
    keys = keys_of(target)
    with closing(target.existing_store(store)) as engine, signals_interrupt(), StatusLine() as line:
        rotated = Rotation(engine, keys, tell=lambda told: line.draw(_progress(told))).run()
    if as_json:
        output.print_json({"key": keys.current, **_record(rotated)})
    else:
        click.echo(_sentence(rotated, keys.current))
    return 1 if rotated.unreadable or rotated.restless else 0


def keys_of(target: CommandTarget) -> "Encryption":
    """The keys of the app, or those of the environment. Raises EncryptionKeyMissing."""
    from shigoto.app import load_app
    from shigoto.encryption import KEY_FILE, KEYS, keys_from_environment

    keys = keys_from_environment() if target.app is None else load_app(target.app).encryption
    if keys is None:
        raise EncryptionKeyMissing(
            f"There is no key here: name your app with --app, or the keys by ${KEYS} or ${KEY_FILE}."
        )
    return keys


def _progress(rotated: "Rotated") -> str:
    share = rotated.at / rotated.to if rotated.to else 1.0
    return f"{output.bar(share)} job {rotated.at} of {rotated.to}, {_values(rotated.changed)} encrypted anew"


def _record(rotated: "Rotated") -> dict[str, object]:
    return {name: getattr(rotated, name) for name in ("changed", "schedules", "unreadable", "restless")}


def _sentence(rotated: "Rotated", current: str) -> str:
    text = f"{_values(rotated.changed)} encrypted anew by the key {current}"
    if rotated.schedules:
        text += f", and the arguments of {rotated.schedules} schedule{'' if rotated.schedules == 1 else 's'}"
    if rotated.restless:
        text += (
            ". Meanwhile others went on to encrypt by another key: put the new one first in every process, start them"
            " anew, then run this again"
        )
    elif not rotated.unreadable:
        return f"{text}. No other key is needed to read what is stored."
    if not rotated.unreadable:
        return f"{text}."
    left = ", ".join(f"{count} by {name}" for name, count in sorted(rotated.unreadable.items()))
    return f"{text}. What other keys have encrypted that are not here, or are not the same, was left: {left}."


def _values(count: int) -> str:
    return f"{count} value{'' if count == 1 else 's'}"
