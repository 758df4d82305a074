"""The bus: carries events to subscribers, in the thread of the worker's event loop.

    unsubscribe = bus.subscribe(watch)                      # every event
    unsubscribe = bus.subscribe(count, JobCompleted)        # one kind
    unsubscribe = bus.subscribe(trace, JobEvent)            # a kind and all below it

Events are made for nobody most of the time. So whoever would publish one in a hot place asks first, `active`
for any subscriber at all and `wants` for this kind, and makes no event when the answer is no.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeVar, overload

from shigoto.observe.events import Event

E = TypeVar("E", bound=Event)

Unsubscribe = Callable[[], None]

logger = logging.getLogger("shigoto.observe")


class _Subscription:
    """One act of subscribing; the same function may subscribe twice, and is then called twice."""

    __slots__ = ("fn", "kinds")

    def __init__(self, fn: Callable[[Any], None], kinds: tuple[type[Event], ...]) -> None:
        self.fn = fn
        self.kinds = kinds


class Bus:
    """Calls subscribers in the order they came. What one raises is logged and changes nothing."""

    __slots__ = ("_failures", "_listeners", "_subscriptions", "active")

    def __init__(self) -> None:
        self.active = False
        self._subscriptions: list[_Subscription] = []
        self._failures: tuple[type[BaseException], ...] = (Exception,)
        # Kind of event -> who hears it; forgotten whenever somebody comes or goes.
        self._listeners: dict[type[Event], tuple[Callable[[Any], None], ...]] = {}

    @overload
    def subscribe(self, fn: Callable[[Event], None], /) -> Unsubscribe: ...
    @overload
    def subscribe(self, fn: Callable[[E], None], /, *kinds: type[E]) -> Unsubscribe: ...
    def subscribe(self, fn: Callable[[Any], None], /, *kinds: type[Event]) -> Unsubscribe:
        """Call `fn` with every event of these kinds (none named: all) until the returned function is called.

        `fn` runs on the event loop and must not block. Unsubscribing twice is fine.
        """
        # A subscriber that asks a cancelled future for its result raises this, and it must not look as if the worker's
        # own task were cancelled. Imported here: whoever only enqueues needs no asyncio.
        from asyncio import CancelledError

        self._failures = (Exception, CancelledError)
        subscription = _Subscription(fn, kinds or (Event,))
        self._subscriptions.append(subscription)
        self._changed()

        def unsubscribe() -> None:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
                self._changed()

        return unsubscribe

    def hears(self, fn: Callable[[Any], None]) -> bool:
        """Whether this function has subscribed."""
        return any(subscription.fn == fn for subscription in self._subscriptions)

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody would hear an event of exactly this kind."""
        return self.active and bool(self._listening_to(kind))

    def publish(self, event: Event) -> None:
        """Tell everybody who listens to this kind."""
        if not self.active:
            return
        listeners = self._listeners.get(type(event))
        for fn in self._listening_to(type(event)) if listeners is None else listeners:
            try:
                fn(event)
            except self._failures:
                logger.exception(
                    "A subscriber failed on %s and missed it; the worker goes on", type(event).__name__
                )

    def _listening_to(self, kind: type[Event]) -> tuple[Callable[[Any], None], ...]:
        listeners = self._listeners.get(kind)
        if listeners is None:
            listeners = tuple(s.fn for s in self._subscriptions if issubclass(kind, s.kinds))
            self._listeners[kind] = listeners
        return listeners

    def _changed(self) -> None:
        self._listeners = {}
        self.active = bool(self._subscriptions)
