"""Reports of a simulated run: each request and each iteration once, when it ends, and the totals of its machines at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from spotwise.core.costs.cost_model import BatchShape
from spotwise.core.messages.members import Pool
from spotwise.core.values import value


@dataclass(frozen=True, slots=True)
class PromptBlocks:
    """Hashes of a prompt's blocks, its content in a trace. Two prompts begin alike as far as their hashes are equal.

    Attributes:
        hashes: one a block, each 0 or above; equal hashes are equal blocks behind equal ones. The last block may be a part.
        block_tokens: tokens of a block.
    """

    hashes: tuple[int, ...]
    block_tokens: int

    def token_ids(self, prompt_tokens: int, number: int) -> tuple[int, ...]:
        """Return a prompt whose tokens are above 0 and alike where blocks are; those behind the last block belong to no other
        request's, which has another `number`."""
        ids: list[int] = []
        for block in self.hashes:
            ids.extend([block + 1] * self.block_tokens)
        missing = prompt_tokens - len(ids)
        return tuple(ids[:prompt_tokens]) if missing <= 0 else (*ids, *[-1 - number] * missing)


#: Of a prompt whose content is not known: it has nothing in common with another.
NO_BLOCKS = PromptBlocks((), 1)


@value
class Arrival:
    """A request's arrival.

    Attributes:
        at_s: seconds from the start of the run.
        prompt_tokens: at least 1.
        output_tokens: at least 1, the first one included.
        blocks: block hashes of the prompt, where its content is known.
        priority: the lower the earlier, where the policies heed it.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: PromptBlocks | None = None
    priority: int = field(default=0, kw_only=True)


@value
class CompletedRequest:
    """A completed request.

    Attributes:
        first_token_s, finished_s: seconds from the start of the run.
        cached_tokens: tokens of its prompt that were found in the prefix cache of the worker that computed the rest of it.
        machines: machines of its prompt and its tokens, in the last attempt; `None` unless `WorldSettings.reports_machines`.
    """

    arrival: Arrival
    first_token_s: float
    finished_s: float
    cached_tokens: int = 0
    machines: tuple[str, str] | None = None

    @property
    def ttft_s(self) -> float:
        """TTFT in seconds."""
        return self.first_token_s - self.arrival.at_s

    @property
    def e2e_s(self) -> float:
        """E2E latency in seconds."""
        return self.finished_s - self.arrival.at_s

    @property
    def tbt_s(self) -> float | None:
        """Mean time between tokens as in the paper's simulator: over all output tokens; `None` for a single token."""
        tokens = self.arrival.output_tokens
        return (self.finished_s - self.first_token_s) / tokens if tokens > 1 else None


class Observer(Protocol):
    """Receives the events of a run, in order of time."""

    def request_completed(self, request: CompletedRequest) -> None:
        """A request completed."""

    def request_failed(self, arrival: Arrival, reason: str) -> None:
        """A request failed, possibly after some tokens."""

    def iterations_ended(self, machine_id: str, shape: BatchShape, seconds: float, iterations: int = 1) -> None:
        """A machine has run so many iterations of this shape, `seconds` long in total."""

    def tokens_spaced(self, gaps_s: Sequence[float], tokens: int = 1) -> None:
        """So many tokens were made at each of these seconds after their predecessors, each in its own request."""


@dataclass(frozen=True, slots=True)
class MachineResult:
    """Totals of one machine.

    Attributes:
        home_pool: at the end.
        sent: KV hand-offs that it made.
        sent_bytes: bytes of these, and the sent part of cancelled hand-offs.
        preemptions: sequences that lost their blocks.
        peak_kv_tokens: most tokens with blocks at an iteration's start, device and host.
        swapped_out_bytes, swapped_in_bytes: KV copied to the host, and back.
    """

    machine_id: str
    home_pool: Pool
    sent: int
    sent_bytes: float
    preemptions: int
    peak_kv_tokens: int
    swapped_out_bytes: int
    swapped_in_bytes: int


@dataclass(frozen=True, slots=True)
class WorldResult:
    """Totals of a world at its end.

    Attributes:
        ended_s: simulated end of the last request.
        machines: in order of id.
        moved, recomputed, restarted: requests of machines that left, as in `DepartureTotals`.
    """

    ended_s: float
    completed: int
    failed: int
    machines: tuple[MachineResult, ...]
    moved: int = 0
    recomputed: int = 0
    restarted: int = 0
