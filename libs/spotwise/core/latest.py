"""A dictionary that forgets, for what is remembered of members that come and go under ever new ids.

Law: a process that lives for months meets more ids than it has room for; what it knows of one that it has not met for longest
goes first.

Invariants: at most `capacity` keys, those that were set last.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LatestDict(OrderedDict[K, V]):
    """A dictionary of the keys that were set last.

    Args:
        capacity: keys kept at most.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self.capacity:
            self.popitem(last=False)
