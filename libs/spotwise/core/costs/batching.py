"""Builds the next iteration's batch.

Law: decode and prefill rows share an iteration (iteration-level scheduling: Orca, section 4.1), in order of arrival.
Prompts are FCFS, at most `max_prompt_tokens` a batch (Splitwise, section 4.3); whole, a longer one runs alone among prompts.
With `cuts_prompts`, `max_num_batched_tokens` or a prefill budget they are cut instead: decodes first, prompts get what is left.
At most one prompt of a batch is cut, the last; a prompt is never passed over for a later one.
The first prompt offered always gets a token, so decodes cannot starve it.
With `decodes_pause` decodes take part beside prompts up to `max_prompt_tokens` tokens in all; the last offered pause.

Source: chunked prefill, Sarathi-Serve (Agrawal et al., OSDI 2024), section 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from spotwise.core.values import value


class BatchRow(NamedTuple):
    """One sequence's row: `num_tokens` computed from `first_position` on (the tokens with KV), 1 in a decode; position p is in
    block `block_ids[p // block_size]`.
    """

    sequence_id: str
    first_position: int
    num_tokens: int
    block_ids: tuple[int, ...]

    @property
    def is_decode(self) -> bool:
        """Whether this row computes one token after others."""
        return self.num_tokens == 1 and self.first_position > 0


@value
class Batch:
    """One iteration's rows, decodes and prefills together, in order of arrival."""

    rows: tuple[BatchRow, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens computed."""
        return sum(row.num_tokens for row in self.rows)

    @property
    def prompt_tokens(self) -> int:
        """Tokens computed by prefill rows."""
        return sum([row.num_tokens for row in self.rows if row.num_tokens > 1 or row.first_position == 0])


@value
class BatchLimits:
    """Bounds of one iteration. `max_num_batched_tokens` includes decodes and cuts prompts to fit (`None`: no such bound); at
    least `max_num_seqs`, so that a prompt always gets a token. `decodes_pause`: prompts that fill `max_prompt_tokens` run
    without decodes (Splitwise's published simulator). `cuts_prompts`: no prompt exceeds `max_prompt_tokens`; else a single one
    may, where nothing else cuts it (as there).
    """

    max_num_seqs: int = 256
    max_prompt_tokens: int = 2048
    max_num_batched_tokens: int | None = None
    decodes_pause: bool = False
    cuts_prompts: bool = False

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1 or self.max_prompt_tokens < 1:
            raise ValueError("max_num_seqs and max_prompt_tokens must be at least 1")
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens} and max_num_seqs {self.max_num_seqs}; "
                "an iteration needs a token for each of its sequences"
            )
        if self.decodes_pause and self.max_num_batched_tokens is not None:
            raise ValueError(
                "decodes_pause needs whole prompts, without max_num_batched_tokens: cut ones leave room for decodes"
            )

    def part_tokens(self, decodes: int) -> int | None:
        """Return how many tokens are left to prompts beside so many decodes; `None` for no such bound."""
        if self.max_num_batched_tokens is None:
            return None
        # A prompt that has a row leaves the decodes one row less.
        return self.max_num_batched_tokens - min(decodes, self.max_num_seqs - 1)


class PromptBudget(Protocol):
    """Bounds the prompts of one iteration for the sake of its decodes, and of what comes next."""

    def max_chunk_tokens(self, first_position: int) -> int:
        """Return how many prompt tokens from `first_position` on may join; at least 1 at first."""

    def spend(self, first_position: int, tokens: int) -> None:
        """Note a chunk that joins."""


@dataclass(slots=True)
class BatchBuilder:
    """Collects rows for one iteration, offered in scheduling order; `decodes` get their tokens before any prompt."""

    limits: BatchLimits
    decodes: int = 0
    budget: PromptBudget | None = None
    rows: list[BatchRow] = field(default_factory=list)
    _decode_ids: list[str] = field(default_factory=list)
    _prompt_tokens: int = 0
    _prompts_closed: bool = False

    @property
    def is_full(self) -> bool:
        """Whether no row is left."""
        return len(self.rows) >= self.limits.max_num_seqs

    def chunk_tokens(self, prompt_tokens: int, first_position: int = 0) -> int:
        """Return how many prompt tokens from `first_position` on may join; fewer than all close the batch for prompts."""
        if self._prompts_closed or self.is_full:
            self._prompts_closed = True
            return 0
        bounds = [self.limits.max_prompt_tokens - self._prompt_tokens]
        if (part_tokens := self.limits.part_tokens(self.decodes)) is not None:
            bounds.append(part_tokens - self._prompt_tokens)
        if self.budget is not None:
            bounds.append(self.budget.max_chunk_tokens(first_position))
        if prompt_tokens <= min(bounds):
            return prompt_tokens
        self._prompts_closed = True
        if self.limits.cuts_prompts or len(bounds) > 1:
            return min(bounds)
        return prompt_tokens if self._prompt_tokens == 0 else 0

    def add_prompt(self, row: BatchRow) -> None:
        """Add a prefill row with the tokens that `chunk_tokens` returned."""
        self._prompt_tokens += row.num_tokens
        if self.budget is not None:
            self.budget.spend(row.first_position, row.num_tokens)
        self.rows.append(row)

    def add_decode(self, row: BatchRow) -> None:
        """Add a decode row; check `is_full` first."""
        self.rows.append(row)
        if self.limits.decodes_pause:
            self._decode_ids.append(row.sequence_id)

    def build(self) -> Batch | None:
        """Return the batch without the decodes that pause, or `None` where there is nothing to run."""
        if self._decode_ids and self._prompt_tokens:
            paused = set(self._decode_ids[max(0, self.limits.max_prompt_tokens - self._prompt_tokens) :])
            return Batch(tuple(row for row in self.rows if row.sequence_id not in paused))
        return Batch(tuple(self.rows)) if self.rows else None
