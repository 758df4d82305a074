"""Tasks to try things out with, before there are any of one's own.

    tasks     four built-in tasks, which commands use when no --app is given
    payload   what they have in common: a payload
    acts      what `shigoto demo` puts on: tasks of every kind, and the programme in which they appear
    troupe    worker processes that never outlive the one that started them
    show      the demo itself: a store, worker processes, a stream of jobs, and the reckoning

A task belongs to one app. So the apps are made by functions, one for each store: `--app shigoto.demo:app`
calls them.
"""

from shigoto.app import Shigoto
from shigoto.demo.acts import Acts
from shigoto.demo.tasks import declare


def app(url: str | None = None) -> Shigoto:
    """An app with the built-in tasks."""
    made = Shigoto(url)
    declare(made)
    return made


def stage(url: str | None = None) -> Shigoto:
    """An app with the tasks of `shigoto demo`."""
    made = Shigoto(url)
    Acts(made)
    return made
