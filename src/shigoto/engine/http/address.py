"""What the address of a server says: `http://HOST:8710`, or `https://HOST/a/path` where it is mounted.

Who we are is a token, which is best kept out of addresses: it is taken from $SHIGOTO_TOKEN, or from the file that
$SHIGOTO_TOKEN_FILE names. An address that has one as its password is understood all the same, because it is how one
process of a worker tells the next.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit

from msgspec import Struct

from shigoto.model.errors import StoreRefused
from shigoto.model.text import without_secrets

PORT = 8710
PREFIX = "/api/v1"
LOOPBACK = ("localhost", "127.0.0.1", "::1")

_FIT_FOR_A_HEADER = re.compile(r"[\x21-\x7e]{1,500}")


class Address(Struct, frozen=True, kw_only=True):
    """Where the server is, and who we are there. `url` holds the token: only `shown` is for the eyes of people."""

    url: str
    shown: str
    tls: bool
    host: str
    port: int
    path: str  # before the routes of the API; it ends without a slash
    token: str | None

    @property
    def naked(self) -> bool:
        """Whether the token travels where others may read it."""
        return self.token is not None and not self.tls and self.host not in LOOPBACK

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"


def read_address(url: str, environ: Mapping[str, str] = os.environ) -> Address:
    """What the address says. Raises StoreRefused for what cannot be meant."""
    shown = without_secrets(url)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise StoreRefused(f"{shown!r} is not the address of a server: {error}.") from None
    if not host:
        raise StoreRefused(f"{shown!r} names no host. Write http://HOST:{PORT}.")
    if parts.query or parts.fragment:
        raise StoreRefused(f"{shown!r} has options. The address of a server has none.")
    tls = parts.scheme == "https"
    token = _token(parts, environ)
    name = f"[{host}]" if ":" in host else host
    number = port or (443 if tls else PORT)
    where = f"{name}:{number}{parts.path.rstrip('/').removesuffix(PREFIX)}"
    password = "" if token is None else f":{quote(token, safe='')}@"
    return Address(
        url=f"{parts.scheme}://{password}{where}",
        shown=f"{parts.scheme}://{where}",
        tls=tls,
        host=host,
        port=number,
        path=parts.path.rstrip("/").removesuffix(PREFIX),
        token=token,
    )


def _token(parts: SplitResult, environ: Mapping[str, str]) -> str | None:
    said = parts.password or parts.username
    if said:
        return _fit(unquote(said), "the store address")
    if text := environ.get("SHIGOTO_TOKEN", "").strip():
        return _fit(text, "SHIGOTO_TOKEN")
    if path := environ.get("SHIGOTO_TOKEN_FILE", ""):
        try:
            text = Path(path).read_text().strip()
        except (OSError, ValueError) as error:
            raise StoreRefused(
                f"The file of the token cannot be read (SHIGOTO_TOKEN_FILE): {error}."
            ) from error
        return _fit(text, "the file of SHIGOTO_TOKEN_FILE")
    return None


def _fit(token: str, where: str) -> str:
    if _FIT_FOR_A_HEADER.fullmatch(token) is None:
        raise StoreRefused(f"What {where} has is no token. `shigoto token create` makes one: shg_….")
    return token
