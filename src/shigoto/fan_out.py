"""Fan-out: one job stores one child for each tenant, in batches, so that it can simply run again.

The id of a child is derived from that of its parent, so whatever an earlier run has stored is met again. Where the
tenants come from is the application's affair; under row security `shigoto sql fan-out` prints a function that lists
them.
"""

from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence, Set
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID, uuid5

from msgspec import Struct
from msgspec.structs import replace

from shigoto.engine.protocol import Engine
from shigoto.enqueue import Call, expect_call
from shigoto.middleware.tracing import Tracing, storing
from shigoto.model.errors import OptionInvalid
from shigoto.model.job import JobSpec
from shigoto.model.text import plain_id, plain_whole, shown
from shigoto.options import MAX_TENANT, text

BATCH = 500
MAX_PART = 200

Tenant = TypeVar("Tenant", bound=str | int | UUID)
Part = tuple[str, str]  # a task, and which part of the fan-out its children are


class FannedOut(Struct, frozen=True):
    """What became of the children: made now, there already, or put in the place of one with the same key."""

    inserted: int = 0
    existing: int = 0
    replaced: int = 0


class FanOut:
    """One fan-out of a parent, batch by batch. `before` are the parts that this run has stored already."""

    def __init__(self, parent: UUID, part: str, before: Set[Part]) -> None:
        self._parent = parent
        self._part = part if part == "" else text("part", part, MAX_PART)
        self._before = before
        self._engine: Engine | None = None
        self._tracing: Tracing | None = None
        self._statuses = Counter[str]()
        self.parts: set[Part] = set()

    def run(self, tenants: Iterable[Tenant], call: Callable[[Tenant], Call[Any]]) -> FannedOut:
        """Store all children, and return when the last batch is committed."""
        for some in _batches(tenants):
            engine, children = self._children(some, call)
            with storing(self._tracing, children) as specs:
                self._statuses.update(each.status for each in engine.run(engine.enqueue_many(specs)))
        return FannedOut(**self._statuses)

    async def arun(
        self, tenants: Iterable[Tenant] | AsyncIterable[Tenant], call: Callable[[Tenant], Call[Any]]
    ) -> FannedOut:
        """Store all children without blocking the event loop."""
        async for some in _abatches(tenants):
            engine, children = self._children(some, call)
            with storing(self._tracing, children) as specs:
                self._statuses.update(each.status for each in await engine.arun(engine.enqueue_many(specs)))
        return FannedOut(**self._statuses)

    def _children(
        self, tenants: Sequence[Tenant], call: Callable[[Tenant], Call[Any]]
    ) -> tuple[Engine, list[JobSpec]]:
        made = [(_name(tenant), _checked(call(tenant))) for tenant in tenants]
        app = made[0][1].route.app
        engine = self._engine = self._engine or app.engine
        self._tracing = app.tracing
        return engine, [self._child(tenant, each) for tenant, each in made]

    def _child(self, tenant: str, call: Call[Any]) -> JobSpec:
        spec = call.route.spec
        part = (spec.task, self._part)
        if part in self._before:
            raise OptionInvalid(
                f"This job has fanned out to {spec.task!r} before, and there is one child for each tenant. Tell the"
                " two apart by part=, such as part=str(day)."
            )
        if call.route.app.engine is not self._engine:
            raise OptionInvalid(f"{call!r} belongs to another app than the calls before it.")
        if spec.tenant not in ("", tenant):
            raise OptionInvalid(f"{call!r} is for tenant {spec.tenant!r}, and was made for {tenant!r}.")
        self.parts.add(part)
        id = uuid5(self._parent, "\0".join((*part, tenant)))
        return replace(call.spec(id, tenant), pattern=None)


def _name(tenant: object) -> str:
    """What the tenant is called in the store."""
    number, id = plain_whole(tenant), plain_id(tenant)
    name = str(number) if number is not None else tenant if id is None else str(id)
    return text("The tenant", name, MAX_TENANT)


def _checked(call: Call[Any]) -> Call[Any]:
    expect_call("A fan-out", call)
    options = call.route.options
    if options.id is not None or options.connection is not None:
        raise OptionInvalid(
            f"{call!r}: the children of a fan-out have ids of their own and are stored in batches, so they can have"
            " neither the id nor the connection of using(…)."
        )
    return call


def _batches(tenants: Iterable[Tenant]) -> Iterator[list[Tenant]]:
    """The tenants in their order, which is sorted if they have none."""
    if isinstance(tenants, str | bytes):
        raise OptionInvalid(f"A fan-out takes a list of tenants, not one: write [{shown(tenants)}].")
    rest = iter(sorted(tenants, key=_name) if isinstance(tenants, Set) else tenants)
    while some := list(islice(rest, BATCH)):
        yield some


async def _abatches(tenants: Iterable[Tenant] | AsyncIterable[Tenant]) -> AsyncIterator[list[Tenant]]:
    if not isinstance(tenants, AsyncIterable):
        for some in _batches(tenants):
            yield some
        return
    some = list[Tenant]()
    async for tenant in tenants:
        some.append(tenant)
        if len(some) == BATCH:
            yield some
            some = list[Tenant]()
    if some:
        yield some
