"""A scheduling policy of one's own, as docs/tour.md shows it: the shortest prompt runs first."""

from __future__ import annotations

from spotwise.core.worker.policy_registry import RegisteredPolicy
from spotwise.core.worker.scheduling_policy import KeyedPolicy
from spotwise.core.worker.sequence import Sequence


def by_prompt_tokens(sequence: Sequence) -> int:
    """Return the tokens of a prompt."""
    return sequence.known_tokens - sequence.output_tokens


SHORTEST_PROMPT_FIRST = RegisteredPolicy(lambda policy, table, prefixes: KeyedPolicy(by_prompt_tokens))
