"""Embeddings of prompts, pooled from the hidden states that the model's head reads, after the final norm.

They are pooled in the iteration's own forward, beside the rows that get logits: the head computes nothing for them.
Source: last-token and mean pooling as sentence-transformers names them (Reimers and Gurevych: Sentence-BERT, 2019, section 3).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from collections.abc import Sequence as Rows
from typing import Any

import torch

from spotwise.core.costs.batching import BatchRow
from spotwise.core.requests.sampling import Pooling


class PromptPooling:
    """The embedding of one prompt, while its tokens are computed.

    Args:
        kind: what is pooled.
        prompt_length: tokens of the prompt.
    """

    def __init__(self, kind: Pooling, prompt_length: int) -> None:
        self.kind = kind
        self._length = prompt_length
        #: By position up to which tokens were computed: the sum of their hidden states, `[hidden]` in float64. Two of them, so
        #: that a part of a prompt whose iteration failed can be computed again; from position 0 on all can.
        self._sums: dict[int, torch.Tensor] = {}
        self._embedding: torch.Tensor | None = None

    def pooled_tokens(self, row: BatchRow) -> int:
        """Return how many of a row's tokens are read, its last ones."""
        if self.kind is Pooling.MEAN:
            return row.num_tokens
        return int(row.first_position + row.num_tokens == self._length)

    def add(self, row: BatchRow, hidden: torch.Tensor) -> None:
        """Take the hidden states `[pooled tokens, hidden]` of a row.

        Raises:
            ValueError: tokens before it were not computed here.
        """
        first, end = row.first_position, row.first_position + row.num_tokens
        if self.kind is Pooling.MEAN:
            hidden_sum = hidden.sum(0, dtype=torch.float64)
            if first > 0:
                if (before := self._sums.get(first)) is None:
                    raise ValueError(f"the mean of {row.sequence_id} lacks tokens before {first}")
                self._sums = {first: before, end: before + hidden_sum}
            else:
                self._sums = {end: hidden_sum}
            hidden = self._sums[end][None] / end
        if end == self._length:
            self._embedding = hidden[-1].float()

    def embedding(self) -> tuple[float, ...]:
        """Return the embedding, float32.

        Raises:
            ValueError: the prompt was not computed to its end.
        """
        if self._embedding is None:
            raise ValueError("the prompt's hidden states were not read")
        return tuple(self._embedding.tolist())


#: A row, and what pools its sequence's prompt; `None`: nothing does.
PooledRow = tuple[BatchRow, PromptPooling | None]


def needs_all_tokens(rows: Rows[PooledRow]) -> bool:
    """Whether hidden states of other tokens than each row's last are read."""
    return any(pooling is not None and pooling.kind is Pooling.MEAN for _, pooling in rows)


class HeadInput:
    """What the head reads of a forward: the hidden states of those tokens that get logits, and those that are pooled.

    Args:
        model: whose head is in its place for good.
    """

    def __init__(self, model: Any) -> None:
        self._device = model.device
        self._places: tuple[torch.Tensor, torch.Tensor] | None = None
        self._pooled: torch.Tensor | None = None
        head = model.get_output_embeddings()
        #: Whether hidden states can be read.
        self.is_readable = head is not None
        if head is not None:
            head.register_forward_pre_hook(self._before_head)

    @property
    def is_read(self) -> bool:
        """Whether the forward is one whose hidden states are pooled: all its tokens' come to the head, which gets those that
        get logits.
        """
        return self._places is not None

    @contextlib.contextmanager
    def pooling(self, rows: Rows[PooledRow], last_token: Rows[int], logits_at: Rows[int]) -> Iterator[None]:
        """Pool prompts from the forward within, if there are any among its rows.

        Args:
            rows: rows of the forward.
            last_token: flat position of each row's last token.
            logits_at: flat positions of the tokens that get logits.

        Raises:
            ValueError: the mean of a prompt lacks tokens before its row.
        """
        pooled_at = [
            position
            for last, (row, pooling) in zip(last_token, rows, strict=True)
            if pooling is not None
            for position in range(last + 1 - pooling.pooled_tokens(row), last + 1)
        ]
        if not pooled_at:
            yield
            return
        self._places, self._pooled = (self._positions(logits_at), self._positions(pooled_at)), None
        try:
            yield
        finally:
            self._places = None
        if (hidden := self._pooled) is not None:  # else the forward ended before the head, in a stage of a group
            _add_pooled(hidden, rows)
            self._pooled = None

    def _positions(self, positions: Rows[int]) -> torch.Tensor:
        return torch.tensor(positions, dtype=torch.int64, device=self._device)

    def _before_head(self, head: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        if self._places is None:
            return None
        logits_at, pooled_at = self._places
        hidden, *others = inputs
        self._pooled = hidden[0, pooled_at]
        return (hidden[:, logits_at], *others)


def _add_pooled(hidden: torch.Tensor, rows: Rows[PooledRow]) -> None:
    start = 0
    for row, pooling in rows:
        if pooling is not None and (tokens := pooling.pooled_tokens(row)):
            pooling.add(row, hidden[start : start + tokens])
            start += tokens
