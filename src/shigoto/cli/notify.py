"""Notifications: which rules the app has, whether their messages arrive, and switching notices off."""

from contextlib import closing
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from shigoto.cli import output
from shigoto.cli.output import Column
from shigoto.cli.target import answers, suggest, takes_target, target_of
from shigoto.model.errors import DeclarationError, OptionInvalid, nearest
from shigoto.model.ids import uuid7
from shigoto.model.secrets import scrubbed
from shigoto.model.text import message_of
from shigoto.model.time import host_clock, to_datetime

if TYPE_CHECKING:
    from shigoto.notify.rules import Rule
    from shigoto.notify.targets import DeliveryTarget


class Sent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    rule: str
    target: str
    delivered: bool
    error: str | None = None


class RuleRecord(Struct, frozen=True, kw_only=True):
    name: str
    on: str
    targets: tuple[str, ...]
    window: float
    digest: float | None


@click.group()
def notify() -> None:
    """Show the rules of the app, and try whether their messages arrive.

    Rules are declared in code, `Shigoto(notify=[…])`, and carried out by the workers of the app.
    """


@notify.command(name="list")
@answers
def list_rules(ctx: click.Context, *, as_json: bool) -> None:
    """Show the rules: of what they tell, where to, and how often. Addresses are not shown."""
    records = [_record(rule) for rule in _rules(ctx, ())]
    if as_json:
        output.print_json(records)
    elif records:
        columns = [Column("rule"), Column("on"), Column("targets"), Column("how often")]
        rows = [[record.name, record.on, ", ".join(record.targets), _how_often(record)] for record in records]
        output.print_lines(output.table(columns, rows, output.width_of()))
    else:
        click.echo("The app has no rules: nobody is told of anything.")


@notify.command()
@click.option("--rule", "names", multiple=True, help="Only this rule; may be given again.")
@answers
def test(ctx: click.Context, names: tuple[str, ...], *, as_json: bool) -> None:
    """Send a test message to every target, from here and now, and tell what became of it.

    It needs what a worker needs: the settings of mail, and the secrets of webhooks. The exit code is 1 if one of them
    was not delivered. The store is not asked.

    \b
    Examples:
      shigoto --app shop:app notify test
      shigoto --app shop:app notify test --rule failure
    """
    rules = _rules(ctx, names)
    if not rules:
        raise DeclarationError(
            "The app has no rules: give it some with Shigoto(notify=[on_failure(to=[Mail()])])."
        )
    sent = [_send(rule, target) for rule in rules for target in rule.targets]
    if as_json:
        output.print_json(sent)
    else:
        for each in sent:
            ended = "delivered" if each.delivered else f"NOT delivered: {output.one_line(each.error or '')}"
            click.echo(f"{each.rule} → {each.target}: {ended}")
    ctx.exit(0 if all(each.delivered for each in sent) else 1)


@notify.command()
@click.argument("store", required=False, shell_complete=suggest("files"))
@takes_target
def off(ctx: click.Context, store: str | None) -> None:
    """Let a store write no more notices, for good: until a worker of an app with rules starts.

    For a store whose app no longer has rules. What is written already stays: `shigoto clear --task shigoto.notice`.
    """
    with closing(target_of(ctx).existing_store(store)) as engine:
        news = engine.run(engine.switch_notices(False))
    click.echo("No more notices are written." if news else "No notices were written before.")


def _rules(ctx: click.Context, names: tuple[str, ...]) -> "tuple[Rule, ...]":
    app = target_of(ctx).load()
    rules = () if app.notifier is None else app.notifier.rules
    known = tuple(rule.name for rule in rules)
    for name in names:
        if name not in known:
            raise OptionInvalid(f"The app has no rule {name!r}.{nearest(name, known)}")
    return tuple(rule for rule in rules if not names or rule.name in names)


def _send(rule: "Rule", target: "DeliveryTarget") -> Sent:
    from shigoto.notify.notification import Notification

    event = Notification(
        id=uuid7(), kind="test", rule=rule.name, subject=rule.name, at=to_datetime(host_clock())
    )
    try:
        target.check()
        target.deliver(event)
    except Exception as error:
        # Whatever a target or a function of the user's own comes up with is the answer, and may quote what is secret.
        said = scrubbed(message_of(error))
        return Sent(rule=rule.name, target=target.key, delivered=False, error=said)
    return Sent(rule=rule.name, target=target.key, delivered=True)


def _record(rule: "Rule") -> RuleRecord:
    return RuleRecord(
        name=rule.name,
        on=rule.kind,
        targets=tuple(target.key for target in rule.targets),
        window=rule.window / 1000,
        digest=None if rule.digest is None else rule.digest / 1000,
    )


def _how_often(record: RuleRecord) -> str:
    if record.digest is not None:
        return f"a digest every {record.digest:g} s"
    return f"once in {record.window:g} s" if record.window else "each"
