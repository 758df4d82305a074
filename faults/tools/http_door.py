"""Hostile input through the HTTP door: many requests, one after the other, in a process of their own.

    python -m faults.tools.http_door MODULE URL COUNT SEED

Each is refused by a problem with one of our codes, or accepted. What came of them is printed as JSON. The address has a
token as its password.
"""

import http.client
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import UUID

from msgspec import DecodeError, json

from faults.evidence.records import Pen
from faults.tools.doors import FILTERS, OPTIONS, TASKS, Tally
from faults.tools.nasty import DOCUMENTS, Nasty
from shigoto.model.ids import uuid7

API = "/api/v1"
REFUSED, BROKEN = 400, 500
LONGEST_PROBLEM = 5_000
FIELDS = (*OPTIONS, "expires_at", "timeout", "allow_unknown")
PATHS = (
    "/jobs",
    "/jobs/batch",
    "/jobs/actions",
    "/workers",
    "/schedules",
    "/queues/mail",
    "/engine/claim",
    "/engine/x",
)


class HttpDoor:
    """Requests with whatever chance says, on one connection for as long as it lasts."""

    def __init__(self, url: str, nasty: Nasty, pen: Pen) -> None:
        self.tally = Tally()
        parts = urlsplit(url)
        self._line = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self._token = parts.password or ""
        self._nasty = nasty
        self._pen = pen
        self._forms: tuple[Callable[[], None], ...] = (
            self._submission,
            self._submission,
            self._batch,
            self._document,
            self._document,
            self._query,
            self._path,
            self._head,
        )

    def knock(self) -> None:
        """One request."""
        form = self._nasty.random.choice(self._forms)
        try:
            form()
        except (OSError, http.client.HTTPException) as error:
            # It may have hung up in the middle of what was too long; but it must be there the next time.
            self._line.close()
            if isinstance(error, http.client.InvalidURL | ValueError) or self._is_there():
                self.tally.refused += 1
            else:
                self.tally.crashed(f"{form.__name__}: {type(error).__name__}: {str(error)[:200]}")

    def _is_there(self) -> bool:
        try:
            self._line.request("GET", "/healthz")
            return self._line.getresponse().read() != b""
        except (OSError, http.client.HTTPException):
            self._line.close()
            return False

    def _submission(self) -> None:
        nasty, id = self._nasty, str(uuid7())
        said: dict[str, Any] = {
            "task": nasty.of(*TASKS, "typed"),
            "payload": {"value": nasty.value()},
            "id": id,
        }
        said |= {name: nasty.scalar() for name in nasty.some(FIELDS, 2)}
        self._send("POST", "/jobs", _text(said), said.get("id"))

    def _batch(self) -> None:
        nasty = self._nasty
        ids = [str(uuid7()) for _ in range(nasty.random.randrange(4))]
        jobs: list[Any] = [{"task": "echo", "id": id, "payload": {"value": nasty.value(1)}} for id in ids]
        if nasty.random.random() < 0.3:
            jobs.append(nasty.scalar())
        self._send("POST", "/jobs/batch", _text({"jobs": jobs}), *ids)

    def _document(self) -> None:
        nasty = self._nasty
        document = nasty.random.choice(DOCUMENTS) if nasty.random.random() < 0.5 else nasty.document()
        text = f'{{"task":"echo","payload":{document}}}' if nasty.random.random() < 0.5 else document
        self._send("POST", nasty.random.choice(PATHS), text.encode("utf-8", "surrogatepass"), anything=True)

    def _query(self) -> None:
        nasty = self._nasty
        terms = " ".join(f"{name}:{nasty.text()}" for name in nasty.some(FILTERS, 3))
        asked = nasty.random.choice((terms, nasty.text()))
        more = (
            f"&limit={_quoted(nasty.random.choice(('1', '1000', '0', nasty.text())))}"
            if nasty.random.random() < 0.3
            else ""
        )
        self._send("GET", f"{nasty.random.choice(('/jobs', '/jobs/count'))}?filter={_quoted(asked)}{more}")

    def _path(self) -> None:
        nasty, word = self._nasty, _quoted(self._nasty.text())
        path = nasty.random.choice(
            ("/jobs/{}", "/jobs/{}/cancel", "/queues/{}", "/schedules/{}", "/tasks/{}", "/{}")
        )
        method = nasty.random.choice(("GET", "POST", "DELETE", "PATCH", "PUT", "TRACE"))
        self._send(method, path.format(word), b"{}" if method in ("POST", "PATCH") else None)

    def _head(self) -> None:
        """Headers that nobody sends."""
        nasty = self._nasty
        name = nasty.random.choice(
            ("Idempotency-Key", "Content-Type", "Shigoto-Protocol", "Accept", "X-Forwarded-For")
        )
        # Without what would end it: that is another header, and no client of ours would send it.
        value = nasty.text().encode("utf-8", "replace").decode("latin-1").translate({10: "", 13: ""})[:3_000]
        body = _text({"task": "echo", "payload": {"value": 1}})
        self._send("POST", "/jobs", body, anything=True, headers={name: value})

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *ids: object,
        anything: bool = False,
        headers: dict[str, str] | None = None,
    ) -> None:
        """`ids` are those of jobs that it may store; `anything`: it may store some whose ids are not known before."""
        said = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
            **(headers or {}),
        }
        for id in ids:
            with suppress(ValueError):  # what is no id stores nothing
                if isinstance(id, str | UUID):
                    self._pen.write("try", job=str(UUID(str(id))))
        self._line.request(method, f"{API}{path}", body, said)
        response = self._line.getresponse()
        raw = response.read()
        if response.status >= BROKEN:
            self.tally.crashed(f"{method} {path[:100]}: {response.status} {raw[:200]!r}")
        elif response.status >= REFUSED:
            self._refused(method, path, response, raw)
        else:
            self.tally.accepted += 1
            self._acknowledge(raw, anything=anything)

    def _refused(self, method: str, path: str, response: http.client.HTTPResponse, raw: bytes) -> None:
        self.tally.refused += 1
        if not raw and response.status == REFUSED:
            return  # not a request at all, as the parser sees it
        try:
            clear = "." in json.decode(raw)["code"] and len(raw) < LONGEST_PROBLEM
        except (DecodeError, TypeError, KeyError):
            clear = response.status == REFUSED and response.getheader("content-type", "").startswith(
                "text/plain"
            )
        if not clear:
            self.tally.crashed(f"{method} {path[:100]}: no problem of ours: {response.status} {raw[:200]!r}")

    def _acknowledge(self, raw: bytes, *, anything: bool) -> None:
        told = json.decode(raw)
        stored = told.get("jobs", [told]) if isinstance(told, dict) else []
        for job in stored:
            if isinstance(job, dict) and job.get("status") == "inserted":
                if anything:
                    self._pen.write("try", job=job["id"])
                self._pen.write("ok", job=job["id"])


def _text(value: Any) -> bytes:
    """As JSON; what has no form there goes by the name of its class, and what has no end is cut off."""
    try:
        return json.encode(value, enc_hook=lambda other: type(other).__name__)
    except Exception:
        return b'{"task":"echo","payload":{"value":' + b"[" * 100_000


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")[:5_000]


def main() -> None:
    """Make so many requests, and say what came of them."""
    _, url, count, seed = sys.argv[1:]
    door = HttpDoor(url, Nasty(Random(seed)), Pen(Path(os.environ["SHIGOTO_LEDGER"])))
    for _ in range(int(count)):
        door.knock()
    sys.stdout.buffer.write(json.encode(door.tally))


if __name__ == "__main__":
    main()
