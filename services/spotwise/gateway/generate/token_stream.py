"""Buffers one sequence's tokens between the mesh and its HTTP response, and tracks its record and submission."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from spotwise.core.messages.mesh import TokenDelta
from spotwise.core.requests.request import FinishReason
from spotwise.core.requests.sampling import SampledToken
from spotwise.gateway.generate.generation import EarlierTokens, GeneratedTokens, SequenceSpec
from spotwise.http.errors import GenerationError


class TokenStream:
    """What one `generate` call waits on.

    Attributes:
        record_turn: held while the request's record is written or deleted, so that a deletion comes after a write that the
            store takes its time for.
        submission: the work of submitting the current attempt, while it lasts.
        has_record: a write has begun.
        submitted_epoch: epoch of the last attempt that a scheduler may know of; 0 where it may know of none.
        num_tokens: tokens that its client has not taken.
        is_parked: its client takes too little, and nothing is generated for it.
    """

    def __init__(self, choice_id: str, spec: SequenceSpec, received_s: float) -> None:
        self.choice_id = choice_id
        self.spec = spec
        self.received_s = received_s
        self.assigned_s: float | None = None
        self.attempts = 0
        self.record_turn = asyncio.Lock()
        self.submission: asyncio.Task[None] | None = None
        self.has_record = False
        self.submitted_epoch = 0
        self.num_tokens = 0
        self.is_parked = False
        self._items: deque[GeneratedTokens | GenerationError] = deque()
        self._has_items = asyncio.Event()

    def submitting(self, work: asyncio.Task[None]) -> None:
        """Note the work of submitting the next attempt."""
        self.submission = work
        work.add_done_callback(self._submitted)

    def _submitted(self, work: asyncio.Task[None]) -> None:
        if self.submission is work:
            self.submission = None

    def put(self, item: GeneratedTokens | GenerationError) -> None:
        """Let the call have an item."""
        if isinstance(item, GeneratedTokens):
            self.num_tokens += len(item.tokens)
        self._items.append(item)
        self._has_items.set()

    async def take(self) -> GeneratedTokens | GenerationError:
        """Wait for what comes next; all tokens that are here come as one item, so that a gateway behind catches up."""
        await self._has_items.wait()
        item = self._items.popleft()
        while isinstance(item, GeneratedTokens) and self._items:
            following = self._items[0]
            if isinstance(following, GenerationError):
                break
            item = GeneratedTokens(
                item.tokens + following.tokens,
                following.finish_reason,
                item.cached_tokens or following.cached_tokens,
                following.prefill_s if item.prefill_s is None else item.prefill_s,
            )
            self._items.popleft()
        if isinstance(item, GeneratedTokens):
            self.num_tokens -= len(item.tokens)
        if not self._items:
            self._has_items.clear()
        return item


def generated(
    choice_id: str,
    deltas: Sequence[TokenDelta],
    finish_reason: FinishReason | None,
    cached_tokens: int = 0,
    prefill_s: float | None = None,
) -> GeneratedTokens:
    """Return workers' tokens as an item of a stream."""
    tokens = tuple(
        SampledToken(choice_id, delta.token_id, delta.logprobs, delta.prompt_logprobs, embedding=delta.embedding)
        for delta in deltas
        if delta.token_id is not None
    )
    return GeneratedTokens(tokens, finish_reason, cached_tokens, prefill_s)


def saved(choice_id: str, earlier: EarlierTokens) -> GeneratedTokens | None:
    """Return the tokens that other gateways saved of a sequence, as an item of its stream; `None` where there are none."""
    if not earlier.deltas:
        return None
    return generated(choice_id, earlier.deltas, earlier.finish_reason, earlier.deltas[0].cached_tokens or 0)
