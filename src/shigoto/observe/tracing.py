"""Traces of jobs with OpenTelemetry: from whoever enqueues, through the wait in the store, into the handler.

    request ──► enqueue mail ──► wait mail ──► run mail ──► whatever spans the handler makes
                (the producer)   └──────── (the worker, for each attempt anew) ────────┘

Whether a trace is recorded is decided where it begins, by lot if that is here. A job of a trace that is not recorded
carries nothing through the store and costs next to nothing on the way: OpenTelemetry is not even imported for it. A
worker begins no traces, so that what its jobs carry is what holds.

A job carries W3C's `traceparent` and `tracestate` in its `meta` (`Carrier`). One without a trace carries nothing, which
is what nearly all jobs carry where one in a hundred is sampled. What a caller has put under these names himself is left
as it is, and is believed.

Recording must never harm a job: whatever OpenTelemetry raises is logged once, and the job goes on without a span.
"""

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from contextvars import Token
from random import random
from threading import Lock
from typing import TYPE_CHECKING, Any

from msgspec import DecodeError, Struct, json
from msgspec.structs import replace

from shigoto.model.job import MAX_META, JobSpec, Lease
from shigoto.model.worker import Settlement
from shigoto.observe.settings import Traces

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanContext

    from shigoto.observe.otel import RunSpan, Spans, Storing

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
    """The same jobs, with the trace that they belong to. Jobs of one call site still name one template, theirs."""
    templates: dict[int, JobSpec] = {}
    made: list[JobSpec] = []
    for spec in specs:
        if spec.template is None:
            made.append(replace(spec, meta=written(spec.meta, carrier)))
            continue
        template = templates.get(id(spec.template))
        if template is None:
            # Kept alive by the specs themselves, so that no other object gets its place in memory meanwhile.
            template = templates[id(spec.template)] = replace(spec, meta=written(spec.meta, carrier))
        made.append(replace(spec, meta=template.meta, template=template))
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


API, CONTEXT = "opentelemetry.trace", "opentelemetry.context"
FLUSHED_WITHIN = 2.0  # seconds, when a program ends that is none of ours

logger = logging.getLogger("shigoto.observe")


class Asked(Struct, frozen=True):
    """A request of HTTP by which jobs are stored: what it is called, and the trace that it says it belongs to."""

    name: str
    parent: Carrier | None


class Tracing:
    """The traces of one app in one process."""

    def __init__(self, settings: Traces) -> None:
        self.settings = settings
        self._share = settings.share()
        self._rules = False
        self._broken = False
        self._opening = Lock()
        self._spans: Spans | None = None
        # OpenTelemetry's module of contexts, once a part of the program has imported it.
        self._contexts: Any = None
        self._unrecorded: Context

    def rule(self) -> None:
        """This process exists for a worker of ours: what handlers record may go our way."""
        self._rules = True

    def prepare(self) -> None:
        """Open what is needed to record, in a moment in which nobody waits for it: it takes a third of a second."""
        try:
            self._opened()
        except Exception as error:
            self._complain(error)

    def flush(self, seconds: float) -> None:
        """Send the spans that have ended, if that takes no longer than this."""
        if self._spans is not None:
            self._spans.flush(seconds)

    def begin(self, specs: Sequence[JobSpec], asked: Asked | None = None) -> "Storing | None":
        """The spans of jobs that are about to be stored, with the specs to store instead; None for most jobs."""
        if self._contexts is None and CONTEXT in sys.modules:
            self._find_contexts()
        if self._contexts is None and asked is None and not self._share:
            return None
        try:
            place = self._place()
            if place is not None:
                return self._opened().storing(specs, None) if place.trace_flags.sampled else None
            if asked is not None:
                return self._opened().storing(specs, asked) if self._wants(asked) else None
            drawn = self._drawn(len(specs))
            return self._opened().storing_some(specs, drawn) if drawn else None
        except Exception as error:
            self._complain(error)
            return None

    def enter(self, lease: Lease) -> "RunSpan | Token[Context] | None":
        """Put what this thread or task does from now on below the span of a run, until `leave`. If the job has no
        trace that is recorded, below one that is not: samplers that heed a parent then leave out what the handler does.
        None if OpenTelemetry is not even imported."""
        if self._contexts is None and CONTEXT in sys.modules:
            self._find_contexts()
        contexts, meta = self._contexts, lease.meta
        try:
            carrier = None if meta is None or MARK not in meta else carried(meta)
            if carrier is None or (contexts is None and not carrier.sampled):
                if contexts is None:
                    return None
                outside: Token[Context] = contexts.attach(self._unrecorded)
                return outside
            return self._opened().running(lease, carrier)
        except Exception as error:
            self._complain(error)
            return None

    def leave(self, entered: "RunSpan | Token[Context]", lease: Lease, settlement: Settlement) -> None:
        """End the span of a run; the place in a trace is again what it was before `enter`, whatever the handler did."""
        try:
            if isinstance(entered, Token):
                self._contexts.detach(entered)
            else:
                entered.ended(lease, settlement)
        except Exception as error:
            self._complain(error)

    def _find_contexts(self) -> None:
        from shigoto.observe.otel import unrecorded

        self._unrecorded = unrecorded()
        self._contexts = sys.modules[CONTEXT]

    def _place(self) -> "SpanContext | None":
        """Where in a trace this is; None if in none."""
        if self._contexts is None or not self._contexts.get_current():
            return None
        place: SpanContext = sys.modules[API].get_current_span().get_span_context()
        return place if place.is_valid else None

    def _wants(self, asked: Asked) -> bool:
        return self._drawn(1) != [] if asked.parent is None else asked.parent.sampled

    def _drawn(self, count: int) -> list[int]:
        """Which of so many jobs begin a trace that is recorded."""
        share = self._share
        if share >= 1:
            return list(range(count))
        if count == 1:
            return [0] if random() < share else []
        return [at for at in range(count) if random() < share]

    def _opened(self) -> "Spans":
        spans = self._spans
        if spans is None:
            with self._opening:
                spans = self._spans
                if spans is None:
                    from shigoto.observe.otel import Spans

                    spans = self._spans = Spans(self.settings, rules=self._rules)
                    self._find_contexts()
                    if not self._rules:
                        import atexit

                        atexit.register(self.flush, FLUSHED_WITHIN)
        return spans

    def _complain(self, error: Exception) -> None:
        if not self._broken:
            self._broken = True
            logger.error(
                "A span could not be recorded; jobs go on without. This is said once", exc_info=error
            )


def asked_by(name: str, headers: Mapping[str, str]) -> Asked:
    """What the headers of a request say of its trace."""
    return Asked(name, read(headers.get(TRACEPARENT), headers.get(TRACESTATE)))


def storing(
    tracing: Tracing | None, specs: Sequence[JobSpec], asked: Asked | None = None
) -> "Storing | nullcontext[Sequence[JobSpec]]":
    """A block in which jobs are stored, that gives the specs to store."""
    begun = None if tracing is None else tracing.begin(specs, asked)
    return nullcontext(specs) if begun is None else begun
