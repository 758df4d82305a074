"""What an app says of Sentry: whether it is told of jobs that have failed for good, and where that is.

    Shigoto(…, sentry=Sentry())      or, without a change to code, SHIGOTO_SENTRY=on; and $SENTRY_DSN

Only words: nothing of Sentry is imported before there is something to tell (`reporter.py`).
"""

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from shigoto.model.errors import DeclarationError
from shigoto.observe.switch import is_on

VARIABLE, DSN = "SHIGOTO_SENTRY", "SENTRY_DSN"


class Sentry(Struct, frozen=True, kw_only=True):
    """Tell Sentry of jobs that have failed for good.

        app = Shigoto("sqlite:///jobs.db", sentry=Sentry(dsn="https://key@sentry.example/1"))

    Without a `dsn` it is $SENTRY_DSN, and without that nothing is sent. `environment` and `release` are what events
    carry; without them $SENTRY_ENVIRONMENT and $SENTRY_RELEASE.
    """

    dsn: str | None = None
    environment: str | None = None
    release: str | None = None

    def __repr__(self) -> str:
        place = None if self.dsn is None else urlsplit(self.dsn).hostname
        return f"Sentry(to {place}, environment={self.environment!r}, release={self.release!r})"


def chosen_sentry(given: Sentry | None, environment: Mapping[str, str] = os.environ) -> Sentry | None:
    """What holds for an app: what its code says, or else the environment; None if nothing is to be sent. Raises
    DeclarationError for what cannot be, and if the SDK is not installed."""
    _expect_sentry(given)
    chosen = Sentry() if given is None and is_on(VARIABLE, environment) else given
    if chosen is None:
        return None
    dsn = chosen.dsn or environment.get(DSN, "").strip()
    if not dsn:
        return None
    _expect_dsn(dsn)
    from importlib.util import find_spec

    if find_spec("sentry_sdk") is None:
        raise DeclarationError("Sentry needs its SDK, which is not installed: pip install 'shigoto[sentry]'.")
    return Sentry(dsn=dsn, environment=chosen.environment, release=chosen.release)


def _expect_sentry(given: object) -> None:
    if given is not None and not isinstance(given, Sentry):
        # What it is, and not what it says: that may be an address, with its key in it.
        raise DeclarationError(f"sentry takes Sentry(…), and not a value of the type {type(given).__name__}.")


def _expect_dsn(dsn: str) -> None:
    """Raise DeclarationError for what is no address of a project in Sentry; it is not shown, for it has a key in it."""
    try:
        parts = urlsplit(dsn)
        fine = bool(parts.hostname and parts.username and parts.path.strip("/")) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or not dsn.startswith(("http://", "https://")):
        raise DeclarationError(
            f"The DSN of Sentry is no address such as https://KEY@HOST/PROJECT. It comes from sentry= or ${DSN}."
        )
