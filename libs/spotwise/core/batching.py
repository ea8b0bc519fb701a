"""Which rows make the next iteration.

Law: iteration-level scheduling (Orca, section 4.1) with selective batching left to the engine: decode rows and prefill rows
share one iteration. Prompts are first come, first served, at most `max_prompt_tokens` of them a batch (Splitwise, section
4.3: throughput falls beyond 2,048); a longer prompt runs alone among prompts. Where `max_num_batched_tokens` is set, or the
pace of those that decode asks for it, prompts are cut instead: decodes have their tokens first, the prompts in order of
arrival what is left (chunked prefill: Sarathi-Serve, section 4), so that no iteration is longer than that, whatever prompts
come.

Invariants: rows come out in order of arrival; no batch holds more than `max_num_seqs` rows; a prompt is never passed over
in favour of a later one; at most one prompt of a batch is cut short, and it is the last; the first prompt offered always
gets a token, so that decodes cannot starve it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class BatchRow(NamedTuple):
    """One sequence's part in one iteration.

    Attributes:
        sequence_id: the attempt.
        first_position: position of the first token computed, which is how many have their KV already.
        num_tokens: tokens computed in this iteration: 1 in a decode, all that are uncomputed or a part of them in a prefill.
        block_ids: the sequence's block table; position p lives in block `block_ids[p // block_size]`.
    """

    sequence_id: str
    first_position: int
    num_tokens: int
    block_ids: tuple[int, ...]

    @property
    def is_decode(self) -> bool:
        """Whether this row computes one token after others, as all decodes do."""
        return self.num_tokens == 1 and self.first_position > 0


@dataclass(frozen=True, slots=True)
class Batch:
    """One iteration's work, decodes and prefills together, in order of arrival."""

    rows: tuple[BatchRow, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens computed."""
        return sum(row.num_tokens for row in self.rows)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of them that no decode computes."""
        return sum([row.num_tokens for row in self.rows if row.num_tokens > 1 or row.first_position == 0])


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of one iteration.

    Attributes:
        max_num_seqs: rows at most.
        max_prompt_tokens: prompt tokens at most, unless one whole prompt alone is longer.
        max_num_batched_tokens: tokens at most, decodes included; prompts are cut to fit. `None` runs prompts whole. At least
            `max_num_seqs`, so that a full batch of decodes and a prompt always has a token for the prompt.
    """

    max_num_seqs: int = 256
    max_prompt_tokens: int = 2048
    max_num_batched_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1 or self.max_prompt_tokens < 1:
            raise ValueError("max_num_seqs and max_prompt_tokens must be at least 1")
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens} and max_num_seqs {self.max_num_seqs}; "
                "an iteration needs a token for each of its sequences"
            )

    def part_tokens(self, decodes: int) -> int | None:
        """Return to how many tokens prompts are cut where `decodes` sequences want to decode; `None` where they run whole."""
        if self.max_num_batched_tokens is None:
            return None
        # A prompt that has a row leaves the decodes one row less.
        return self.max_num_batched_tokens - min(decodes, self.max_num_seqs - 1)


class PromptBudget(Protocol):
    """What the prompts of one iteration may take, for the sake of those that decode."""

    def room_at(self, first_position: int) -> int:
        """Return how many tokens of a prompt may join, the first of which is at `first_position`; at least 1 at first."""

    def spend(self, first_position: int, tokens: int) -> None:
        """Note a part that joins."""


@dataclass(slots=True)
class BatchBuilder:
    """Collects rows for one iteration; asked in order of arrival, it enforces the limits.

    Prompts are first come, first served: once one is turned away, later prompts are too, while decodes go on.

    Attributes:
        limits: of the iteration.
        decodes: how many sequences want to decode; they have their tokens before any prompt.
        budget: what prompts may take for the sake of these; they are cut to fit. `None` for no such bound.
    """

    limits: BatchLimits
    decodes: int = 0
    budget: PromptBudget | None = None
    rows: list[BatchRow] = field(default_factory=list)
    _prompt_tokens: int = 0
    _prompts_closed: bool = False

    @property
    def is_full(self) -> bool:
        """Whether no row of any kind has room."""
        return len(self.rows) >= self.limits.max_num_seqs

    def room_for_prompt(self, prompt_tokens: int, first_position: int = 0) -> int:
        """Return how many of a prompt's tokens from `first_position` on may join: all, where prompts are cut a part, or none.

        A prompt that does not get all it wants closes the batch for later prompts.
        """
        if self._prompts_closed or self.is_full:
            self._prompts_closed = True
            return 0
        rooms = [self.limits.max_prompt_tokens - self._prompt_tokens]
        if (part_tokens := self.limits.part_tokens(self.decodes)) is not None:
            rooms.append(part_tokens - self._prompt_tokens)
        if self.budget is not None:
            rooms.append(self.budget.room_at(first_position))
        if prompt_tokens <= min(rooms):
            return prompt_tokens
        self._prompts_closed = True
        is_cut = len(rooms) > 1
        if is_cut:
            return min(rooms)
        return prompt_tokens if self._prompt_tokens == 0 else 0

    def add_prompt(self, row: BatchRow) -> None:
        """Add a prefill row with the tokens that `room_for_prompt` gave."""
        self._prompt_tokens += row.num_tokens
        if self.budget is not None:
            self.budget.spend(row.first_position, row.num_tokens)
        self.rows.append(row)

    def add_decode(self, row: BatchRow) -> None:
        """Add a decode row; ask `is_full` first."""
        self.rows.append(row)

    def build(self) -> Batch | None:
        """Return the batch, or `None` where there is nothing to run."""
        return Batch(tuple(self.rows)) if self.rows else None
