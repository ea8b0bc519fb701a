"""Which rows make the next iteration.

Law: iteration-level scheduling (Orca, section 4.1) with selective batching left to the engine: decode rows and prefill rows
share one iteration. Prompts are first come, first served, at most `max_prompt_tokens` of them a batch (Splitwise, section
4.3: throughput falls beyond 2,048); a longer prompt runs alone among prompts.

Invariants: rows come out in order of arrival; no batch holds more than `max_num_seqs` rows; a prompt is never passed over
in favour of a later one.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One sequence's part in one iteration.

    Attributes:
        sequence_id: the attempt.
        first_position: position of the first token computed, which is how many have their KV already.
        num_tokens: tokens computed in this iteration: all that are uncomputed in a prefill, 1 in a decode.
        block_ids: the sequence's block table; position p lives in block `block_ids[p // block_size]`.
    """

    sequence_id: str
    first_position: int
    num_tokens: int
    block_ids: tuple[int, ...]

    @property
    def is_decode(self) -> bool:
        """Whether this row computes a token that was sampled, and not a prompt."""
        return self.num_tokens == 1 and self.first_position > 0


@dataclass(frozen=True, slots=True)
class Batch:
    """One iteration's work, decodes and prefills together, in order of arrival."""

    rows: tuple[BatchRow, ...]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of one iteration.

    Attributes:
        max_num_seqs: rows at most.
        max_prompt_tokens: prompt tokens at most, unless one prompt alone is longer.
    """

    max_num_seqs: int = 256
    max_prompt_tokens: int = 2048

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1 or self.max_prompt_tokens < 1:
            raise ValueError("max_num_seqs and max_prompt_tokens must be at least 1")


@dataclass(slots=True)
class BatchBuilder:
    """Collects rows for one iteration; asked in order of arrival, it enforces the limits.

    Prompts are first come, first served: once one is turned away, later prompts are too, while decodes go on.
    """

    limits: BatchLimits
    rows: list[BatchRow] = field(default_factory=list)
    _prompt_tokens: int = 0
    _prompts_closed: bool = False

    @property
    def is_full(self) -> bool:
        """Whether no row of any kind has room."""
        return len(self.rows) >= self.limits.max_num_seqs

    def takes_prompt(self, prompt_tokens: int) -> bool:
        """Tell whether a prompt may join; a refusal closes the batch for all later prompts."""
        fits = self._prompt_tokens == 0 or self._prompt_tokens + prompt_tokens <= self.limits.max_prompt_tokens
        if self._prompts_closed or self.is_full or not fits:
            self._prompts_closed = True
        return not self._prompts_closed

    def close_for_prompts(self) -> None:
        """Let no later prompt pass one that had no memory."""
        self._prompts_closed = True

    def add_prompt(self, row: BatchRow) -> None:
        """Add a prefill row that `takes_prompt` admitted."""
        self._prompt_tokens += row.num_tokens
        self.rows.append(row)

    def add_decode(self, row: BatchRow) -> None:
        """Add a decode row; ask `is_full` first."""
        self.rows.append(row)

    def build(self) -> Batch | None:
        """Return the batch, or `None` where there is nothing to run."""
        return Batch(tuple(self.rows)) if self.rows else None
