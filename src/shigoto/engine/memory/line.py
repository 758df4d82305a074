"""A waiting line: job numbers in an order, where leaving from the middle costs nothing.

A heap cannot drop an entry from its middle. So a number that leaves is only struck from `_members`; its entry
is dead from then on, and is thrown away when it comes to the top, or when the dead outnumber the living.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

Rank = tuple[int, ...]


class Line:
    """Numbers ordered by the rank they were added with; the number itself breaks ties."""

    def __init__(self) -> None:
        self._entries: list[tuple[Rank, int]] = []
        self._members: dict[int, tuple[Rank, int]] = {}

    def size(self) -> int:
        """How many entries it keeps in memory, the dead ones too."""
        return len(self._entries)

    def numbers(self) -> Iterable[int]:
        """Who stands in it, in no order."""
        return self._members.keys()

    def add(self, number: int, rank: Rank) -> None:
        """Put a number in line; one that is already there gets the new rank."""
        entry = (rank, number)
        self._members[number] = entry
        heappush(self._entries, entry)
        self._tidy()

    def discard(self, number: int) -> None:
        """Take a number out, wherever it stands; one that is not in line is none of our business."""
        self._members.pop(number, None)
        self._tidy()

    def head(self) -> tuple[Rank, int] | None:
        """The first entry, or None when nobody waits."""
        while self._entries:
            entry = self._entries[0]
            # By identity: a number that left and came back with the same rank has a living and a dead entry.
            if self._members.get(entry[1]) is entry:
                return entry
            heappop(self._entries)
        return None

    def pop(self) -> None:
        """Take the head out."""
        entry = self.head()
        if entry is not None:
            heappop(self._entries)
            del self._members[entry[1]]

    def _tidy(self) -> None:
        if len(self._entries) > 2 * len(self._members) + 64:
            self._entries = list(self._members.values())
            heapify(self._entries)


def merged(lines: Iterable[Line]) -> Iterable[int]:
    """Take numbers out of several lines, always the first of all of them; stop asking to stop taking."""
    heads = [(head, index, line) for index, line in enumerate(lines) if (head := line.head()) is not None]
    heapify(heads)
    while heads:
        (_, number), index, line = heappop(heads)
        line.pop()
        yield number
        if (head := line.head()) is not None:
            heappush(heads, (head, index, line))
