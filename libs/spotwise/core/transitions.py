"""Transition tables: for each state, the events that may happen in it, and the state that follows each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

StateT = TypeVar("StateT", bound=StrEnum)
EventT = TypeVar("EventT", bound=StrEnum)


class IllegalTransitionError(RuntimeError):
    """A move that a table does not have: a bug in the caller."""


def follow(table: Mapping[StateT, Mapping[EventT, StateT]], state: StateT, event: EventT) -> StateT:
    """Return the state that follows; `IllegalTransitionError` where the table has no such move."""
    try:
        return table[state][event]
    except KeyError:
        raise IllegalTransitionError(f"no transition from {state.value} on {event.value}") from None
