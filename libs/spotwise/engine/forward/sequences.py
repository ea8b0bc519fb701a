"""The tokens of the engine's sequences: a prompt, then output tokens, append-only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from spotwise.core.costs.batching import BatchRow
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SamplingParams, TokenLogprobs
from spotwise.engine.forward.pooling import PromptPooling
from spotwise.engine.native.low_rank import LoadedAdapter


class EngineSequence:
    """One sequence's tokens, parameters, adapter and block table, kept in arrays to avoid Python loops per token."""

    def __init__(self, record: RequestRecord, adapter: LoadedAdapter | None = None) -> None:
        self.adapter = adapter
        self.sequence_id = record.sequence_id
        self.sampling = record.sampling
        self.stop = record.stop
        self.prompt_length = len(record.prompt_token_ids)
        known = record.prompt_token_ids + record.output_token_ids
        self._tokens = np.empty(len(known) + 64, dtype=np.int64)
        self._tokens[: len(known)] = known
        self._length = len(known)
        #: Some logits of its prompt are no numbers.
        self.is_broken = False
        self._block_ids: tuple[int, ...] = ()
        self._block_table = np.empty(0, dtype=np.int64)
        self._blocks_below = (0, 0)
        # An attempt that continues after committed outputs has reported its prompt already.
        reports_prompt = record.sampling.prompt_logprobs is not None and not record.output_token_ids
        self.prompt_logprobs: list[TokenLogprobs | None] | None = (
            [None] * self.prompt_length if reports_prompt else None
        )
        pooling = record.sampling.pooling
        self.pooling = (
            None if pooling is None or record.output_token_ids else PromptPooling(pooling, self.prompt_length)
        )

    @classmethod
    def of_tokens(cls, token_ids: Iterable[int], adapter: LoadedAdapter | None = None) -> Self:
        """Return a sequence without a request, for the engine's probes."""
        stop = StopCriteria(max_new_tokens=1)
        sampling = SamplingParams(temperature=0.0)
        return cls(RequestRecord("", 0, "", 0, "", tuple(token_ids), (), sampling, stop, 0.0), adapter)

    @property
    def num_tokens(self) -> int:
        """Known tokens, prompt and output."""
        return self._length

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Known tokens, a view."""
        return self._tokens[: self._length]

    def check_row(self, row: BatchRow, block_size: int) -> None:
        """Raise ValueError if a row names unknown tokens or too few blocks."""
        end = row.first_position + row.num_tokens
        if row.first_position < 0 or row.num_tokens < 1 or end > self._length:
            raise ValueError(
                f"row {row.sequence_id}: tokens {row.first_position}..{end} of a sequence of {self._length}"
            )
        if end > len(row.block_ids) * block_size:
            raise ValueError(f"row {row.sequence_id}: {len(row.block_ids)} blocks do not hold {end} tokens")

    def append(self, token_id: int) -> None:
        """Add an output token."""
        if self._length == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty(self._length, dtype=np.int64)])
        self._tokens[self._length] = token_id
        self._length += 1
        self.prompt_logprobs = self.pooling = None  # reported with the first output token

    def block_table(self, block_ids: tuple[int, ...]) -> NDArray[np.int64]:
        """Return `block_ids` as an array, converted again only when they changed."""
        if block_ids is not self._block_ids:
            if block_ids != self._block_ids:
                self._block_table = np.asarray(block_ids, dtype=np.int64)
                self._blocks_below = (0, 0)
            self._block_ids = block_ids
        return self._block_table

    def blocks_below(self, num_blocks: int) -> int:
        """Return how many entries of the table, from the first on, name one of `num_blocks` blocks, counted again only when the
        table changed.
        """
        if self._blocks_below[0] != num_blocks:
            wrong = np.flatnonzero((self._block_table < 0) | (self._block_table >= num_blocks))
            self._blocks_below = num_blocks, int(wrong[0]) if len(wrong) else len(self._block_table)
        return self._blocks_below[1]


def require_valid(record: RequestRecord, context_length: int, vocab_size: int) -> None:
    """Raise ValueError if a record's tokens are empty, too long or outside the vocabulary."""
    known = record.prompt_token_ids + record.output_token_ids
    if not record.prompt_token_ids:
        raise ValueError(f"sequence {record.sequence_id} has an empty prompt")
    if len(known) > context_length:
        raise ValueError(f"sequence {record.sequence_id} has {len(known)} tokens, the context {context_length}")
    if min(known) < 0 or max(known) >= vocab_size:
        raise ValueError(f"sequence {record.sequence_id} has a token id outside 0..{vocab_size - 1}")
    if record.sampling.pooling is not None and record.sampling.prompt_logprobs is not None:
        raise ValueError(f"sequence {record.sequence_id} has its prompt both scored and pooled")
