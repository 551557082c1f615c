"""Whose turn it is among clients that wait."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class Turns(Generic[Item]):
    """A bounded queue in which clients take turns.

        turns = Turns(places=8)
        turns.join("a", 1), turns.join("a", 2), turns.join("b", 3)
        turns.take(), turns.take(), turns.take()    # 1, 3, 2

    Each client has one turn, then the next client has; the requests of one client come in their
    order. Where no place is left the client that holds most places loses the request it made last.
    So nobody can keep others out by asking for much.

    Args:
        places: how many may wait, at least 1.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._waiting: OrderedDict[Hashable, deque[Item]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def join(self, client: Hashable, item: Item) -> Item | None:
        """Let an item wait; returns the one that had to leave for that, perhaps itself."""
        self._waiting.setdefault(client, deque()).append(item)
        self._count += 1
        if self._count <= self._places:
            return None
        most = max(len(items) for items in self._waiting.values())
        # Of those that wait for as much the one who has just come gives way.
        holder = client
        if len(self._waiting[client]) < most:
            holder = next(each for each, items in self._waiting.items() if len(items) == most)
        last = self._waiting[holder][-1]
        self._remove(holder, last)
        return last

    @property
    def first(self) -> Item | None:
        """What ``take`` would return."""
        return next((items[0] for items in self._waiting.values()), None)

    def take(self) -> Item | None:
        """The next one, which waits no more; None: nobody waits."""
        if not self._waiting:
            return None
        client, items = next(iter(self._waiting.items()))
        item = items[0]
        self._remove(client, item)
        if client in self._waiting:
            self._waiting.move_to_end(client)
        return item

    def leave(self, item: Item) -> bool:
        """Let an item go; returns whether it waited."""
        holder = next((each for each, items in self._waiting.items() if item in items), None)
        if holder is None:
            return False
        self._remove(holder, item)
        return True

    def clear(self) -> list[Item]:
        """Let all go; returns them."""
        items = [item for each in self._waiting.values() for item in each]
        self._waiting.clear()
        self._count = 0
        return items

    def _remove(self, client: Hashable, item: Item) -> None:
        items = self._waiting[client]
        items.remove(item)
        self._count -= 1
        if not items:
            del self._waiting[client]
