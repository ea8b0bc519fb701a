"""How long a prompt may hold up those that decode.

Law: an iteration in which sequences decode takes about `max_stall_s` at most: prompts beside them are cut to what can be
computed in that time, as learned from the iterations before (stall-free batching: Sarathi-Serve, Agrawal et al., OSDI 2024,
section 4, which has its number of tokens set by hand). A token costs something, and as much again for every `context_parity`
tokens that it attends to, so the parts of a long prompt become shorter as it goes on. A fast device so takes long parts and a
slow one short parts, without a setting; where nobody decodes, prompts run whole. What a token costs before any was computed is
what a profile of the device says, where there is one, of a prompt of `TYPICAL_PROMPT_TOKENS`.

Invariants: a prompt always goes on, by `MIN_TOKENS` at least; the answer depends on nothing but what was ordered, when that
was, and when it ended.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from spotwise.core.batching import Batch
from spotwise.core.cost_model import BatchShape, IterationCost, pairs

#: However slow the device and however many decode; an iteration with fewer prompt tokens says little of what these cost.
MIN_TOKENS = 16
#: Before anything is known of a device.
_FIRST_TOKENS = 64
#: Of the prompt by which a profile says what a token costs: long enough to spread what an iteration costs in itself, short
#: enough not to be ruled by its attention.
TYPICAL_PROMPT_TOKENS = 512
#: Weight of the newest iteration in what is known.
_NEWEST = 0.25


@dataclass(frozen=True, slots=True)
class TokenCost:
    """Seconds that a token takes.

    Attributes:
        seconds: by itself.
        seconds_per_context: for each token that it attends to.
    """

    seconds: float
    seconds_per_context: float

    def of(self, tokens: float, context: float) -> float:
        """Return the seconds of tokens that attend to `context` tokens in all."""
        return tokens * self.seconds + context * self.seconds_per_context

    def part_within(self, seconds: float, first_position: int) -> int:
        """Return how many tokens of a prompt from `first_position` on take so long: the root of a quadratic."""
        if seconds <= 0.0:
            return 0
        first = self.of(1, first_position)
        return int(2 * seconds / (first + math.sqrt(first * first + 2 * self.seconds_per_context * seconds)))


class IterationPrefillBudget:
    """What prompts may take of one iteration.

    Args:
        cost: of a token; `None` where nothing is known of the device yet.
        seconds: left for prompts; not above 0 where those that decode take all.
    """

    def __init__(self, cost: TokenCost | None, seconds: float) -> None:
        self._cost = cost
        self._seconds = seconds
        self._spent_tokens = 0

    def room_at(self, first_position: int) -> int:
        """Return how many tokens of a prompt may join, the first of which is at `first_position`."""
        known = _FIRST_TOKENS - self._spent_tokens
        if self._cost is not None:
            known = self._cost.part_within(self._seconds, first_position)
        return max(known, MIN_TOKENS - self._spent_tokens, 0)

    def spend(self, first_position: int, tokens: int) -> None:
        """Note a part that joins."""
        self._spent_tokens += tokens
        if self._cost is not None:
            self._seconds -= self._cost.of(tokens, pairs(first_position, tokens))


class ChunkedPrefillBudget:
    """Learns what a token costs, and says how much of a prompt may join an iteration.

    Args:
        max_stall_s: seconds that an iteration with decodes should take at most; `None` lets it take what it takes.
        context_parity: of the model: tokens of context that cost a token as much as all else.
        profile: what iterations cost here by a measurement; `None` where there was none.
    """

    def __init__(
        self, max_stall_s: float | None, context_parity: float = math.inf, profile: IterationCost | None = None
    ) -> None:
        self._max_stall_s = max_stall_s
        self._context_parity = context_parity
        self._cost: TokenCost | None = None
        self._context_per_token = 0.0
        if profile is not None:
            self._start_from(profile)
        self._in_flight: deque[tuple[Batch, float]] = deque()
        self._last_end_s = 0.0

    @property
    def prompt_token_s(self) -> float | None:
        """Seconds that a prompt token takes: by itself, and for what the prompt tokens of late attended to on average.

        Learned from all iterations with a prompt, `max_stall_s` or not; what decoded beside it counts as so many tokens more.
        Until there was one it is the profile's; `None` without.
        """
        return None if self._cost is None else self._cost.of(1, self._context_per_token)

    def _start_from(self, profile: IterationCost) -> None:
        """Take a prompt of usual length for learned."""
        context = pairs(0, TYPICAL_PROMPT_TOKENS)
        seconds = profile.iteration_s(BatchShape(TYPICAL_PROMPT_TOKENS, context))
        if seconds > 0.0:
            token_s = seconds / (TYPICAL_PROMPT_TOKENS + context / self._context_parity)
            self._cost = TokenCost(token_s, token_s / self._context_parity)
            self._context_per_token = context / TYPICAL_PROMPT_TOKENS

    def budget(self, decode_contexts: Sequence[int]) -> IterationPrefillBudget | None:
        """Return what prompts may take beside decodes that attend to so many tokens each; `None` for all they want."""
        if self._max_stall_s is None or not decode_contexts:
            return None
        taken = self._cost.of(len(decode_contexts), sum(decode_contexts)) if self._cost else 0.0
        return IterationPrefillBudget(self._cost, self._max_stall_s - taken)

    def ordered(self, batch: Batch, now: float) -> None:
        """Note an iteration that begins now, or after those in flight."""
        self._in_flight.append((batch, now))

    def ended(self, now: float, *, failed: bool = False) -> None:
        """Note that the oldest iteration in flight has ended; it began when the one before it had, or when it was ordered."""
        batch, ordered_s = self._in_flight.popleft()
        seconds = now - max(ordered_s, self._last_end_s)
        self._last_end_s = now
        if failed:
            return
        if batch.prompt_tokens < MIN_TOKENS or seconds <= 0.0:  # a clock that was set back
            return
        contexts = [(row.is_decode, pairs(row.first_position, row.num_tokens)) for row in batch.rows]
        token_s = seconds / (batch.num_tokens + sum(context for _, context in contexts) / self._context_parity)
        per_token = sum(context for is_decode, context in contexts if not is_decode) / batch.prompt_tokens
        if self._cost is not None:
            token_s = self._cost.seconds + _NEWEST * (token_s - self._cost.seconds)
            per_token = self._context_per_token + _NEWEST * (per_token - self._context_per_token)
        self._cost = TokenCost(token_s, token_s / self._context_parity)
        self._context_per_token = per_token
