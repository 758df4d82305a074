"""Secrets that stand nowhere else, so that whoever says one has it from where it was put."""

from base64 import b64encode
from collections.abc import Mapping
from random import Random
from urllib.parse import quote, quote_plus

from msgspec import Struct


class Canaries(Struct, frozen=True):
    """Secrets by where they were put; each is a text that stands nowhere else."""

    values: Mapping[str, str]

    def __getitem__(self, where: str) -> str:
        return self.values[where]

    def found_in(self, text: str) -> list[str]:
        """Those that the text has in it, in any of their forms."""
        return [
            where
            for where, value in self.values.items()
            if any(
                form in text for form in {value, quote(value, safe=""), quote_plus(value), repr(value)[1:-1]}
            )
        ]


NAMES = (
    "DSN: --url", "DSN: variable", "DSN: word", "DSN: settings file", "DSN: move", "DSN: query", "DSN: worker",
    "environment: key", "environment: old key", "environment: token", "environment: something",
    "environment: PGPASSWORD", "environment: SMTP password", "environment: webhook secret",
    "environment: webhook address", "environment: Sentry key", "environment: OTLP headers",
    "Secret: text", "Secret: inside", "Secret: number", "Secret: cancelled", "Secret: crashed", "Secret of a plain job",
    "Secret: refused", "Secret: elsewhere", "encrypted: text", "encrypted: inside", "encrypted: failing",
    "encrypted: schedule",
    "by name: password", "by name: header",
    "header: bearer", "header: basic", "header: cookie", "header: api key", "header: query",
    "exception: address", "exception: bearer", "exception: password", "exception: local",
    "elsewhere: address", "elsewhere: checkpoint", "elsewhere: line",
    "unusable: key", "unusable: key without a name", "unusable: key before its name", "unusable: SMTP address",
    "unusable: SMTP scheme", "unusable: SMTP server", "unusable: SMTP password", "unusable: webhook secret",
    "unusable: webhook address", "unusable: webhook receiver", "unusable: Sentry key", "unusable: Sentry switch",
    "unusable: OTLP headers", "unusable: OTLP header", "unusable: OTLP address", "unusable: OTLP scheme",
)  # fmt: skip
KEYS = (
    "environment: key", "environment: old key", "unusable: key without a name", "unusable: key before its name",
)  # fmt: skip


def canaries(random: Random) -> Canaries:
    """One for each name."""
    made = {name: f"canary{random.getrandbits(80):020x}" for name in NAMES}
    made["Secret: number"] = str(random.randrange(10**14, 10**15))
    for name in KEYS:
        made[name] = b64encode(random.randbytes(32)).decode()
    return Canaries(made)
