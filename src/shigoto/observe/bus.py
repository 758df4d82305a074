"""The bus: carries events to subscribers, in the thread of the worker's event loop.

    unsubscribe = bus.subscribe(watch)                      # every event
    unsubscribe = bus.subscribe(count, JobCompleted)        # one kind
    unsubscribe = bus.subscribe(trace, JobEvent)            # a kind and all below it
    unsubscribe = bus.subscribe_batches(add, JobCompleted)  # one kind, as many at once as come at once

Events are made for nobody most of the time. So whoever would publish one in a hot place asks first, `active`
for any subscriber at all and `wants` for this kind, and makes no event when the answer is no.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from shigoto.observe.events import Event

E = TypeVar("E", bound=Event)

Unsubscribe = Callable[[], None]

logger = logging.getLogger("shigoto.observe")


class _Subscription:
    """One act of subscribing; the same function may subscribe twice, and is then called twice."""

    __slots__ = ("ended", "fn", "in_batches", "kinds")

    def __init__(
        self, fn: Callable[[Any], None], kinds: tuple[type[Event], ...], *, in_batches: bool
    ) -> None:
        self.fn = fn
        self.kinds = kinds
        self.in_batches = in_batches
        self.ended = False


class _Listeners:
    """Who hears one kind of event: how they are told of one, and of several at once."""

    __slots__ = ("of_many", "of_one")

    def __init__(self, subscriptions: Sequence[_Subscription]) -> None:
        self.of_one = tuple(_one_by_one(s.fn) if s.in_batches else s.fn for s in subscriptions)
        self.of_many = tuple(subscriptions)


def _one_by_one(fn: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda event: fn((event,))


class Bus:
    """Calls subscribers in the order they came. What one raises is logged and changes nothing."""

    __slots__ = ("_failures", "_listeners", "_subscriptions", "active")

    def __init__(self) -> None:
        self.active = False
        self._subscriptions: list[_Subscription] = []
        self._failures: tuple[type[BaseException], ...] = (Exception,)
        # Kind of event -> who hears it; forgotten whenever somebody comes or goes.
        self._listeners: dict[type[Event], _Listeners] = {}

    @overload
    def subscribe(self, fn: Callable[[Event], None], /) -> Unsubscribe: ...
    @overload
    def subscribe(self, fn: Callable[[E], None], /, *kinds: type[E]) -> Unsubscribe: ...
    def subscribe(self, fn: Callable[[Any], None], /, *kinds: type[Event]) -> Unsubscribe:
        """Call `fn` with every event of these kinds (none named: all) until the returned function is called.

        `fn` runs on the event loop and must not block. Unsubscribing twice is fine.
        """
        return self._subscribed(fn, kinds or (Event,), in_batches=False)

    def subscribe_batches(self, fn: Callable[[Sequence[E]], None], kind: type[E], /) -> Unsubscribe:
        """The same for whoever takes all events of this kind at once that come at once, as completions do: a call for
        each of ninety thousand a second has its price. What `fn` raises costs it the whole batch."""
        return self._subscribed(fn, (kind,), in_batches=True)

    def _subscribed(
        self, fn: Callable[[Any], None], kinds: tuple[type[Event], ...], *, in_batches: bool
    ) -> Unsubscribe:
        # A subscriber that asks a cancelled future for its result raises this, and it must not look as if the worker's
        # own task were cancelled. Imported here: whoever only enqueues needs no asyncio.
        from asyncio import CancelledError

        self._failures = (Exception, CancelledError)
        subscription = _Subscription(fn, kinds, in_batches=in_batches)
        self._subscriptions.append(subscription)
        self._changed()

        def unsubscribe() -> None:
            subscription.ended = True
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
                self._changed()

        return unsubscribe

    def hears(self, fn: Callable[[Any], None]) -> bool:
        return any(subscription.fn == fn for subscription in self._subscriptions)

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody would hear an event of exactly this kind."""
        return self.active and bool(self._listening_to(kind).of_one)

    def publish(self, event: Event) -> None:
        if not self.active:
            return
        listeners = self._listeners.get(type(event))
        for fn in (self._listening_to(type(event)) if listeners is None else listeners).of_one:
            try:
                fn(event)
            except self._failures as error:
                _complain(event, error)

    def publish_all(self, batch: Sequence[Event]) -> None:
        """Tell everybody who listens to them of these, which are all of one kind: one listener of all of them, then the
        next. Who comes meanwhile hears of none, and who goes of none any more."""
        if not (self.active and batch):
            return
        together = tuple(batch)
        for subscription in self._listening_to(type(batch[0])).of_many:
            for told in (together,) if subscription.in_batches else together:
                if subscription.ended:
                    break
                try:
                    subscription.fn(told)
                except self._failures as error:
                    _complain(batch[0], error)

    def _listening_to(self, kind: type[Event]) -> _Listeners:
        listeners = self._listeners.get(kind)
        if listeners is None:
            listeners = _Listeners([s for s in self._subscriptions if issubclass(kind, s.kinds)])
            self._listeners[kind] = listeners
        return listeners

    def _changed(self) -> None:
        self._listeners = {}
        self.active = bool(self._subscriptions)


def _complain(event: Event, error: BaseException) -> None:
    logger.error(
        "A subscriber failed on %s and missed it; the worker goes on", type(event).__name__, exc_info=error
    )
