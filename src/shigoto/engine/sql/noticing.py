"""Notices: stored by the transaction that makes true what they tell of.

Whether any are wanted is one row, `notices` of meta. What ends runs reads it on its way, with the runs themselves; so
a store from which nobody wants to hear is asked no more than before.
"""

from collections.abc import Sequence

from shigoto.engine.sql.command import Steps, sql
from shigoto.engine.sql.dialect import Submit
from shigoto.model.job import JobSpec
from shigoto.model.notice import SWITCH
from shigoto.model.time import Millis


def write_if_wanted(submit: Submit, now: Millis, notices: Sequence[JobSpec]) -> Steps[None]:
    """Store notices, if there are any and somebody wants them."""
    if notices:
        switch = (yield sql("meta", SWITCH)).fetchone()
        if switch is not None and switch[0]:
            yield from write_notices(submit, now, notices)


def write_notices(submit: Submit, now: Millis, notices: Sequence[JobSpec]) -> Steps[None]:
    """Store notices. One that is known already is not stored again: its id tells what it is about."""
    if notices:
        yield from submit(now, notices)


def switch_notices(on: bool) -> Steps[bool]:
    """Remember whether notices are wanted; tells whether that is news."""
    if not on and (yield sql("meta", SWITCH)).fetchone() is None:
        return False
    return (yield sql("switch_notices", int(on))).rowcount > 0
