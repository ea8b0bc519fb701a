"""Budget of prompt tokens in an iteration (stall-free batching).

Law: an iteration takes about `max_stall_s` at most; prompts are cut to fit, also alone: what arrives waits for one iteration.
A token's cost is learned from the iterations before, or starts from a profile; context adds to it by `context_parity`.
Beside decodes prompts advance by `MIN_TOKENS` at least, alone by `ALONE_TOKENS`.
Source: Sarathi-Serve (Agrawal et al., OSDI 2024), section 4, where the number of tokens is configured.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from spotwise.core.costs.batching import Batch
from spotwise.core.costs.cost_model import BatchShape, IterationCost, pairs
from spotwise.core.values import value

#: Tokens ago whose work counts for a third.
REMEMBERED_TOKENS = 4096
#: Prompt tokens of an iteration at least; fewer take too little time to measure their cost.
MIN_TOKENS = 16
#: Prompt tokens of an iteration without decodes at least, also before any cost is known: on processors what an iteration costs
#: whatever its size is then about 2 % of it (docs/results.md has it measured).
ALONE_TOKENS = 256
#: Prompt tokens of an iteration with decodes before any cost is known.
_FIRST_TOKENS = 64
#: Length of the prompt whose profiled seconds give a token's first cost: long enough to spread an iteration's fixed cost,
#: short enough not to be dominated by attention.
TYPICAL_PROMPT_TOKENS = 512
#: Weight of the newest iteration in the learned cost.
_NEWEST = 0.25


class TokenRate:
    """Seconds of a token in one kind of work on one worker, learned from pieces of work of all lengths.

    Law: the rate is all seconds of late over all tokens, so that a piece counts by its tokens; what came `REMEMBERED_TOKENS`
    tokens ago counts for a third. It holds up to `tokens`, the length of the pieces where most of the tokens were: a short
    piece has the same fixed cost as a long one, and says little of how long a long one takes.
    """

    __slots__ = ("_seconds", "_squares", "_tokens")

    def __init__(self) -> None:
        self._seconds = self._tokens = self._squares = 0.0

    def saw(self, tokens: int, seconds: float) -> None:
        """Learn from a piece of work of so many tokens, one at least."""
        kept = math.exp(-tokens / REMEMBERED_TOKENS)
        self._seconds = kept * self._seconds + seconds
        self._tokens = kept * self._tokens + tokens
        self._squares = kept * self._squares + tokens * tokens

    @property
    def token_s(self) -> float | None:
        """Seconds of a token; `None` before the first piece."""
        return self._seconds / self._tokens if self._tokens else None

    @property
    def tokens(self) -> int | None:
        """Up to how many tokens in one piece that was measured; `None` before the first piece."""
        return max(1, round(self._squares / self._tokens)) if self._tokens else None


@value
class TokenCost:
    """Seconds of a token by itself, and for each token that it attends to."""

    seconds: float
    seconds_per_context: float

    def of(self, tokens: float, context: float) -> float:
        """Return the seconds of tokens that attend to `context` tokens in all."""
        return tokens * self.seconds + context * self.seconds_per_context

    def part_within(self, seconds: float, first_position: int) -> int:
        """Return how many prompt tokens from `first_position` on take so many seconds: the root of a quadratic."""
        if seconds <= 0.0:
            return 0
        first = self.of(1, first_position)
        return int(2 * seconds / (first + math.sqrt(first * first + 2 * self.seconds_per_context * seconds)))


class IterationPrefillBudget:
    """What prompts may take of one iteration: seconds, by the cost of a token, which is `None` before any is known, and
    `min_tokens` at least."""

    def __init__(self, cost: TokenCost | None, seconds: float, min_tokens: int = MIN_TOKENS) -> None:
        self._cost = cost
        self._seconds = seconds
        self._min_tokens = min_tokens
        self._spent_tokens = 0

    def max_chunk_tokens(self, first_position: int) -> int:
        """Return how many prompt tokens from `first_position` on may join."""
        tokens = _FIRST_TOKENS - self._spent_tokens
        if self._cost is not None:
            tokens = self._cost.part_within(self._seconds, first_position)
        return max(tokens, self._min_tokens - self._spent_tokens, 0)

    def spend(self, first_position: int, tokens: int) -> None:
        """Note a chunk that joins."""
        self._spent_tokens += tokens
        if self._cost is not None:
            self._seconds -= self._cost.of(tokens, pairs(first_position, tokens))


class ChunkedPrefillBudget:
    """Learns a token's cost, and bounds the prompts of an iteration by it; `max_stall_s` is `None` for no bound.

    Attributes:
        prompt_rate: seconds of a prompt token of late, with its context; the profile's before one is measured.
        iteration_s: seconds of an iteration of late; `None` before the first.

    Args:
        context_parity: tokens of context that cost a token as much as all else.
        profile: measured cost of iterations here.
    """

    def __init__(
        self, max_stall_s: float | None, context_parity: float = math.inf, profile: IterationCost | None = None
    ) -> None:
        self._max_stall_s = max_stall_s
        self._context_parity = context_parity
        self._cost: TokenCost | None = None
        self.prompt_rate = TokenRate()
        if profile is not None:
            self._start_from(profile)
        self._in_flight: deque[tuple[Batch | BatchShape, float]] = deque()
        self._last_end_s = 0.0
        self.iteration_s: float | None = None

    def _start_from(self, profile: IterationCost) -> None:
        context = pairs(0, TYPICAL_PROMPT_TOKENS)
        seconds = profile.iteration_s(BatchShape(TYPICAL_PROMPT_TOKENS, context))
        if seconds > 0.0:
            token_s = seconds / (TYPICAL_PROMPT_TOKENS + context / self._context_parity)
            self._learn(token_s)
            self.prompt_rate.saw(TYPICAL_PROMPT_TOKENS, seconds)

    def _learn(self, token_s: float) -> None:
        self._cost = TokenCost(token_s, token_s / self._context_parity)

    def budget(self, decode_contexts: Sequence[int]) -> IterationPrefillBudget | None:
        """Return what prompts may take beside decodes with these contexts; `None` for no bound."""
        if self._max_stall_s is None:
            return None
        if not decode_contexts:
            return IterationPrefillBudget(self._cost, self._max_stall_s, ALONE_TOKENS)
        taken = self._cost.of(len(decode_contexts), sum(decode_contexts)) if self._cost else 0.0
        return IterationPrefillBudget(self._cost, self._max_stall_s - taken)

    def ordered(self, batch: Batch | BatchShape, now: float) -> None:
        """Note an iteration that begins now, or after the ones in flight; its shape is enough."""
        self._in_flight.append((batch, now))

    def dropped(self, now: float) -> None:
        """Learn nothing from the iterations in flight, which will not end."""
        if self._in_flight:
            self._in_flight.clear()
            self._last_end_s = now

    def ended(self, now: float, *, failed: bool = False) -> None:
        """Learn from the oldest iteration in flight, which began when ordered or when its predecessor ended."""
        batch, ordered_s = self._in_flight.popleft()
        seconds = now - max(ordered_s, self._last_end_s)
        self._last_end_s = now
        if failed:
            return
        if seconds > 0.0:
            known_s = seconds if self.iteration_s is None else self.iteration_s
            self.iteration_s = known_s + _NEWEST * (seconds - known_s)
        if batch.prompt_tokens < MIN_TOKENS or seconds <= 0.0:  # the clock was set back
            return
        shape = batch if isinstance(batch, BatchShape) else BatchShape.of(batch)
        # a decode's own token is half a pair here, and a whole token of its context there
        context = shape.prompt_context + shape.decode_context - 0.5 * shape.decodes
        token_s = seconds / (shape.prompt_tokens + shape.decodes + context / self._context_parity)
        self.prompt_rate.saw(
            shape.prompt_tokens, token_s * (shape.prompt_tokens + shape.prompt_context / self._context_parity)
        )
        if self._cost is not None:
            token_s = self._cost.seconds + _NEWEST * (token_s - self._cost.seconds)
        self._learn(token_s)
