"""The trace of a job on its way through the store: W3C's `traceparent` and `tracestate`, in the job's `meta`.

Pure functions on texts and specs. A job without a trace carries nothing, which is what nearly all jobs carry where one
in a hundred is sampled. What a caller has put under these names himself is left as it is, and is believed.
"""

import re
from collections.abc import Sequence

from msgspec import DecodeError, Struct, json
from msgspec.structs import replace

from shigoto.model.job import MAX_META, JobSpec

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
MARK = f'"{TRACEPARENT}"'  # in every `meta` that has one, and in hardly any other
SAMPLED = 0x01

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_STATE = re.compile(r"[\x20-\x7e]{1,512}")

_objects = json.Decoder(dict[str, object])


class Carrier(Struct, frozen=True):
    """Where in which trace something was asked for, and whether that trace is recorded."""

    trace_id: int
    span_id: int
    sampled: bool
    state: str | None = None

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{SAMPLED if self.sampled else 0:02x}"


def read(parent: object, state: object = None) -> Carrier | None:
    """What the two texts say; None for anything that is no trace. Whoever wrote them may have written anything."""
    found = _FORM.fullmatch(parent) if isinstance(parent, str) else None
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    trace_id, span_id = int(trace, 16), int(span, 16)
    if version == "ff" or (version == "00" and more is not None) or not trace_id or not span_id:
        return None
    kept = state if isinstance(state, str) and _STATE.fullmatch(state) is not None else None
    return Carrier(trace_id, span_id, bool(int(flags, 16) & SAMPLED), kept)


def carried(meta: str | None) -> Carrier | None:
    """The trace that a job's `meta` carries."""
    if meta is None or MARK not in meta:
        return None
    fields = _fields(meta)
    return read(fields.get(TRACEPARENT), fields.get(TRACESTATE))


def stamped(specs: Sequence[JobSpec], carrier: Carrier) -> list[JobSpec]:
    """The same jobs, with the trace that they belong to. Jobs of one call site still name one pattern, of their own."""
    patterns: dict[int, JobSpec] = {}
    made: list[JobSpec] = []
    for spec in specs:
        if spec.pattern is None:
            made.append(replace(spec, meta=written(spec.meta, carrier)))
            continue
        pattern = patterns.get(id(spec.pattern))
        if pattern is None:
            # Kept alive by the specs themselves, so that no other object gets its place in memory meanwhile.
            pattern = patterns[id(spec.pattern)] = replace(spec, meta=written(spec.meta, carrier))
        made.append(replace(spec, meta=pattern.meta, pattern=pattern))
    return made


def written(meta: str | None, carrier: Carrier) -> str | None:
    """`meta` with the trace in it; as it is, if it has one, or no room for one."""
    if meta is not None and MARK in meta and TRACEPARENT in _fields(meta):
        return meta
    state = None if carrier.state is None else json.encode(carrier.state).decode()
    for more in ("" if state is None else f',"{TRACESTATE}":{state}', ""):
        entry = f'{MARK}:"{carrier}"{more}'
        text = f"{{{entry}}}" if meta is None else _with(meta, entry)
        if len(text.encode()) <= MAX_META:
            return text
    return meta


def without(meta: str | None) -> str | None:
    """`meta` without a trace: what is asked for anew has another."""
    if meta is None or MARK not in meta:
        return meta
    rest = {name: value for name, value in _fields(meta).items() if name not in (TRACEPARENT, TRACESTATE)}
    return json.encode(rest).decode() if rest else None


def _with(meta: str, entry: str) -> str:
    """An object of JSON with one more entry at its end. It is not read for that: 16 KiB take a while."""
    begin = meta.rstrip().removesuffix("}").rstrip()
    return f"{begin}{'' if begin.endswith('{') else ','}{entry}}}"


def _fields(meta: str) -> dict[str, object]:
    try:
        return _objects.decode(meta)
    except (DecodeError, RecursionError):
        return {}
