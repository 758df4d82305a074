"""Tokens: who may ask the service for what. They are made and revoked at the store, and nowhere else."""

from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from shigoto.cli import output
from shigoto.cli.arguments import actor, misuse, read_length
from shigoto.cli.confirm import print_result
from shigoto.cli.output import Column, Columns
from shigoto.cli.target import answers, looks_like_store, shared, split_store, suggest, takes_words, target_of
from shigoto.model.errors import StoreRefused
from shigoto.model.service import SCOPES, Scope, Token
from shigoto.model.time import to_datetime

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine

STATUS_COLOURS = {"revoked": "red", "expired": "yellow"}


class TokenRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token for programs; `token` is its text, which is told once."""

    id: str
    name: str
    status: str
    scopes: tuple[Scope, ...]
    queues: tuple[str, ...] | None
    tenant: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    token: str | None = None


@click.group()
def token() -> None:
    """Make, show and revoke the tokens of the service.

    A token says who asks `shigoto server`, and what that one may do. Its scopes are submit (store jobs and ask about
    them), work (be a worker), read (look at everything) and admin (also change it). It can be confined to queues or to
    one tenant. The store keeps a hash of it: what is lost cannot be shown again, only revoked.
    """


@token.command()
@takes_words("[STORE] NAME")
@click.option(
    "--scope", "scopes", type=click.Choice(SCOPES), multiple=True, required=True,
    help="What it may do; may be given again.",
)  # fmt: skip
@click.option(
    "--queue", "queues", multiple=True, shell_complete=suggest("queues"),
    help="Only in this queue; may be given again.",
)  # fmt: skip
@click.option("--tenant", help="Only on behalf of this tenant.")
@click.option("--expires", metavar="DURATION", callback=read_length, help="Only for so long: 12h, 90d.")
@answers
def create(ctx: click.Context, words: tuple[str, ...], *, as_json: bool, **options: Any) -> None:
    """Make a token.

    Its text is printed now and never again, alone on standard output: keep it like a password. The NAME is for
    people: it stands in `token list` and in the audit. The first token of a store locks the door: from then on
    nobody gets in without one.

    \b
    Examples:
      shigoto token create web --scope submit --scope read
      shigoto token create worker --scope work > worker.token
      shigoto token create acme --scope submit --tenant acme --queue mail --expires 90d
    """
    from shigoto.server.tokens import create_op

    store, name = _one(ctx, words, "Which name shall it have?")
    expires: timedelta | None = options["expires"]
    with _opened(ctx, store, existing=False) as engine, misuse(ctx):
        op = create_op(
            engine,
            name,
            options["scopes"],
            queues=options["queues"] or None,
            tenant=options["tenant"],
            expires=expires,
            actor=actor(),
        )
        text, made = engine.run(op)
        now = _now(engine)
    if as_json:
        output.print_json(_record(made, now, text))
    else:
        click.echo(text)
        click.echo(f"Token {made.id} ({made.name}) is made. Its text is not shown again.", err=True)


@token.command(name="list")
@click.argument("store", required=False, shell_complete=suggest("files"))
@answers
def list_tokens(ctx: click.Context, store: str | None, *, as_json: bool) -> None:
    """Show all tokens, also those that were revoked or have expired, but never their text."""
    with _opened(ctx, store) as engine:
        found = engine.run(engine.registry.tokens())
        now = _now(engine)
    records = [_record(each, now) for each in found]
    if as_json:
        output.print_json(records)
    elif records:
        output.print_lines(tokens_table(records, output.width_of()))
    else:
        click.echo("There are no tokens: the service can be used on this machine only, by anybody.")


@token.command()
@takes_words("[STORE] ID|NAME")
@answers
def revoke(ctx: click.Context, words: tuple[str, ...], *, as_json: bool) -> None:
    """End a token, by its id or its name.

    Within two seconds it opens nothing any more. Workers that use it lose their jobs when their leases are over.
    """
    from shigoto.server.tokens import revoke_op

    store, word = _one(ctx, words, "Which token? Write its id or its name.")
    with _opened(ctx, store) as engine, misuse(ctx):
        ended = engine.run(revoke_op(engine, word, actor=actor()))
    text = f"Token {ended.id} ({output.one_line(ended.name)}) is revoked."
    print_result({"id": ended.id, "name": ended.name, "revoked": True}, text, as_json=as_json)


def tokens_table(records: Sequence[TokenRecord], width: int | None) -> list[str]:
    columns: Columns[TokenRecord] = [
        (Column("id"), lambda each: each.id),
        (Column("name", least=6), lambda each: output.one_line(each.name)),
        (Column("status", paint=output.painter(STATUS_COLOURS)), lambda each: each.status),
        (Column("scopes", least=6), lambda each: ", ".join(each.scopes)),
        (
            Column("queues", least=6, spare=3),
            lambda each: "all" if each.queues is None else ", ".join(each.queues),
        ),
        (
            Column("tenant", least=6, spare=4),
            lambda each: output.one_line("all" if each.tenant is None else each.tenant),
        ),
        (
            Column("expires", spare=2),
            lambda each: "never" if each.expires_at is None else output.iso(each.expires_at),
        ),
        (Column("created", spare=1), lambda each: output.iso(each.created_at)),
    ]
    return output.table_of(records, columns, width)


def _record(each: Token, now: int, text: str | None = None) -> TokenRecord:
    status = "revoked" if each.revoked_at is not None else "alive" if each.alive(now) else "expired"
    same = {name: getattr(each, name) for name in ("id", "name", "scopes", "queues", "tenant")}
    return TokenRecord(
        **same,
        status=status,
        created_at=to_datetime(each.created_at),
        expires_at=None if each.expires_at is None else to_datetime(each.expires_at),
        revoked_at=None if each.revoked_at is None else to_datetime(each.revoked_at),
        token=text,
    )


def _one(ctx: click.Context, words: Sequence[str], question: str) -> tuple[str | None, str]:
    """The store, and the one word after it. Raises a usage error."""
    store, rest = split_store(words)
    if not rest:
        note = f" {store} is the store." if store and looks_like_store(store) else ""
        raise click.UsageError(f"{question}{note}", ctx)
    if len(rest) > 1:
        raise click.UsageError(f"{rest[1]!r} is one word too many: it takes a store and a name.", ctx)
    return store, rest[0]


@contextmanager
def _opened(ctx: click.Context, store: str | None, *, existing: bool = True) -> "Generator[Engine]":
    """The store itself. Raises StoreRefused for a server: what is stolen from there must not make more of its kind."""
    target = target_of(ctx)
    address = target.address(store) or ""
    if address.startswith(("http:", "https:")):
        raise StoreRefused(
            "Tokens are made and revoked at the store, never over HTTP. Run this where the server runs, and name its"
            " file or database."
        )
    with closing(target.existing_store(store) if existing else shared(target.store(store))) as engine:
        yield engine


def _now(engine: "Engine") -> int:
    from shigoto.model.service import FeedPosition

    _, now = engine.run(engine.registry.happened(FeedPosition(0), 0, 0))
    return now
