"""Where a job holds what may be encrypted, and how another envelope is put there."""

from collections.abc import Iterator

from msgspec import structs

from shigoto.engine.memory.row import Row
from shigoto.model.secrets import Held, Sealed, is_sealed


def envelopes(row: Row) -> list[Sealed]:
    """All that is encrypted of a job."""
    spec = row.spec
    return [
        Sealed(
            number=row.number,
            held=held,
            token=token,
            line=line,
            text=text,
            id=spec.id,
            tenant=spec.tenant,
            task=spec.task,
        )
        for held, token, line, text in _texts(row)
        if text is not None and is_sealed(text)
    ]


def put_envelope(row: Row, seen: Sealed, text: str) -> None:
    """Put another envelope into the place of one."""
    match seen.held:
        case "payload":
            row.spec = structs.replace(row.spec, payload=text)
        case "result":
            row.result = text
        case "failure":
            row.never_run = text
        case "progress":
            row.progress_text = text
        case "checkpoint":
            row.checkpoint = text
        case "error":
            row.attempts = [
                structs.replace(each, error=text) if each.token == seen.token else each
                for each in row.attempts
            ]
        case "traceback":
            row.attempts = [
                structs.replace(each, traceback=text) if each.token == seen.token else each
                for each in row.attempts
            ]
        case "log":
            at = seen.token, seen.line
            row.lines[at] = structs.replace(row.lines[at], text=text)


def _texts(row: Row) -> Iterator[tuple[Held, int, int, str | None]]:
    yield "payload", 0, 0, row.spec.payload
    yield "result", 0, 0, row.result
    yield "failure", 0, 0, row.never_run
    yield "progress", 0, 0, row.progress_text
    yield "checkpoint", 0, 0, row.checkpoint
    for each in row.attempts:
        yield "error", each.token, 0, each.error
        yield "traceback", each.token, 0, each.traceback
    for (token, line), written in row.lines.items():
        yield "log", token, line, written.text
