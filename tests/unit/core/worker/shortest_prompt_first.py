"""A scheduling policy of one's own, as the tour has it: the shortest prompt runs first."""

from __future__ import annotations

from spotwise.core.worker.scheduling.policy import KeyedPolicy
from spotwise.core.worker.sequences.sequence import Sequence


def by_prompt_tokens(sequence: Sequence) -> int:
    """Return the tokens of a prompt."""
    return sequence.known_tokens - sequence.output_tokens


def shortest_prompt_first(*_: object) -> KeyedPolicy:
    """Return the scheduling policy of a worker; it needs neither its configuration nor its tables."""
    return KeyedPolicy(by_prompt_tokens)
