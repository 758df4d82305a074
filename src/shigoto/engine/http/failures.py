"""What the answers of a server mean: each problem is the error that the engine behind it has raised."""

from collections.abc import Iterator
from ssl import SSLCertVerificationError

import msgspec
from msgspec import Struct

from shigoto.model.errors import (
    RequestError,
    ScheduleInvalid,
    ShigotoError,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    WorkerFenced,
)

NOT_NOW = frozenset({502, 503, 504})
NOT_US = frozenset({401, 403})
NO_ISSUER = frozenset({18, 19, 20, 21})  # codes of OpenSSL: nobody whom we trust has signed it


class Refusal(Struct, frozen=True):
    """An answer of the kind application/problem+json, as far as it matters here."""

    code: str = ""
    detail: str = ""
    field: str | None = None


def _classes(root: type[ShigotoError]) -> Iterator[type[ShigotoError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _classes(kind)


# Of those that say the same code, the first in the tree, which is the most general. What is said of a request is for
# whoever has written it by hand: here it means that the two do not understand each other. But a worker that is fenced
# stays so: that is not the trouble of a store, which one would meet by trying again.
CODES: dict[str, type[ShigotoError]] = {
    kind.code: kind
    for kind in reversed(list(_classes(ShigotoError)))
    if kind is WorkerFenced or not issubclass(kind, RequestError)
}


def failure(status: int, body: bytes, where: str) -> ShigotoError:
    """The error that an answer other than 200 stands for; `where` is the server, for people."""
    try:
        problem = msgspec.json.decode(body, type=Refusal)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = Refusal()
    kind = CODES.get(problem.code)
    if kind is ScheduleInvalid:
        return ScheduleInvalid(problem.detail, problem.field or "")
    if kind is not None:
        return kind(problem.detail)
    said = problem.detail or f"It answers with status {status}."
    if status in NOT_NOW:
        return StoreUnavailable(f"The server at {where} cannot do it now. {said}")
    if status in NOT_US:
        return StoreRefused(f"The server at {where} does not let us in. {said}")
    if 300 <= status < 400:
        return StoreRefused(
            f"The server at {where} sends us elsewhere, where we do not go. Name its own address."
        )
    if not problem.code:
        return StoreRefused(f"At {where} is no Shigoto server, or one of another release. {said}")
    return StoreError(f"The server at {where} refused: {said}")


def distrusted(error: SSLCertVerificationError, where: str) -> StoreRefused:
    """What is wrong with the certificate of a server, and what helps if its authority is one of one's own."""
    helps = (
        " If an authority of your own has signed its certificate, name the file of that one in $SSL_CERT_FILE."
        if error.verify_code in NO_ISSUER
        else ""
    )
    return StoreRefused(
        f"The server at {where} cannot be trusted: {error.verify_message.rstrip('.')}.{helps}"
    )
