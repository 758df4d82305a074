"""Where jobs are, by state and view, and what a filter can ask there: the words that each dialect has for it."""

from collections.abc import Mapping

from msgspec import Struct

from shigoto.model.job import State, View


class Place(Struct, frozen=True, kw_only=True):
    """Where jobs of one state or view are: the table, what must hold there, which column has the number or the lane,
    and what tells the last error."""

    table: str
    condition: str = "TRUE"
    number: str = "s.number"
    lane: str = "b.lane"
    error: str


class Places(Struct, frozen=True, kw_only=True):
    """All of them. `many_pending` finds a page of pending jobs sooner when `many` of them are ready.

    `conditions` are what can be asked in any place, by the name of the filter; `has_error` is asked with the words that
    the place has for the error. `bodies` and `lanes` are joined to a place that needs them, by its column of lanes.
    """

    everywhere: Place
    many_pending: Place
    by_state: Mapping[State | View, Place]
    conditions: Mapping[str, str]
    has_error: str
    join: str
    bodies: str
    lanes: str
    many: str
