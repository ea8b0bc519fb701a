"""A simulated engine: iterations and KV swaps take the seconds of a cost model, and nothing is computed. One iteration runs at
a time, and one swap each way beside it, in order. A token is a function of the sequence's seed and the token's index alone,
so that a request that resumes on another worker gets the same tokens; it is never a stop token.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from spotwise.core.costs.batching import Batch
from spotwise.core.costs.cost_model import BatchShape, IterationCost, LinkCost
from spotwise.core.costs.cost_profile import USUAL_HOST_LINK, MeasuredRange
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.sampling import SampledToken, TokenLogprobs, counter_uniform
from spotwise.mesh.ports.ports import MeshError
from spotwise.worker.simulated.kv import NUM_LAYERS

_log = structlog.get_logger(__name__)

#: The next iteration compensates for a timer's error up to this much: a process too slow for its simulation must not catch up.
_TIMER_S = 0.002
#: Log-probability of what a certain token is drawn before.
_UNLIKELY = -100.0


@dataclass(slots=True)
class _Sequence:
    seed: int
    words: Sequence[int]
    prompt_length: int
    length: int
    logprobs: TokenLogprobs | None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None

    def next_token(self) -> int:
        """Append the next token and return it."""
        index = self.length - self.prompt_length
        self.length += 1
        return self.words[int(counter_uniform(self.seed, index) * len(self.words))]


_Work = tuple[Batch, Callable[[tuple[SampledToken, ...]], None], Callable[[Exception], None]]


class SimulatedEngine:
    """A `WorkerEngine` whose iterations take the seconds of a cost model.

    Args:
        cost: seconds of an iteration.
        words: token ids to sample from.
        name: name of the simulated hardware, for people.
        host_link: seconds of a swap.
        measured: range of the cost's profile; the first iteration beyond each of its figures is logged.
    """

    def __init__(
        self,
        cost: IterationCost,
        words: tuple[int, ...],
        num_blocks: int,
        block_size: int,
        kv_bytes_per_token: int,
        name: str,
        host_blocks: int = 0,
        host_link: LinkCost = USUAL_HOST_LINK,
        measured: MeasuredRange | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.host_blocks = host_blocks
        self.block_size = block_size
        self.kv_bytes_per_token = kv_bytes_per_token
        self.num_layers = NUM_LAYERS
        self.computes_with = f"simulated: {name}"
        self._cost = cost
        self._measured = measured
        self._exceeded: set[str] = set()
        self._vocabulary = words
        self._loop = asyncio.get_running_loop()
        self._sequences: dict[str, _Sequence] = {}
        self._waiting: deque[_Work] = deque()
        self._due_s: float | None = None  # of the iteration under way
        self._carried_s = 0.0  # lateness of the last timer; negative: it was early
        self._timer: asyncio.TimerHandle | None = None
        self._host_link = host_link
        self._out_ends_s = self._in_ends_s = 0.0  # of the last move each way
        self._swaps: dict[int, Callable[[Exception | None], None]] = {}  # those under way
        self._numbers = itertools.count()

    @property
    def max_in_flight(self) -> int:
        """One iteration runs at a time."""
        return 1

    @property
    def num_sequences(self) -> int:
        """Sequences in the engine."""
        return len(self._sequences)

    @property
    def group_times(self) -> None:
        """It is in no group."""

    def watch(self, on_lost: Callable[[str], None], on_restored: Callable[[], None]) -> None:
        """Neither is ever called: the engine is this process."""

    async def prepare(self, record: RequestRecord) -> None:
        """Nothing is needed: words follow no grammar."""

    async def add_sequence(self, record: RequestRecord, prepared: None = None) -> None:
        """Add a sequence; raises `ValueError` where it exists already, has no prompt, an adapter, an embedding to give, or all
        words are its stop tokens.
        """
        if record.sequence_id in self._sequences:
            raise ValueError(f"sequence {record.sequence_id} is here already")
        if not record.prompt_token_ids:
            raise ValueError(f"sequence {record.sequence_id} has an empty prompt")
        if record.sampling.pooling is not None:
            raise ValueError("a simulated worker has no hidden states to pool into an embedding")
        if record.adapter is not None:
            raise ValueError(f"a simulated worker does not have the adapter {record.adapter.name!r}")
        words: tuple[int, ...] = self._vocabulary
        stops = frozenset(record.stop.stop_token_ids)
        if not stops.isdisjoint(words):
            words = tuple(token_id for token_id in words if token_id not in stops)
            if not words:
                raise ValueError("every token of the simulated vocabulary is a stop token of this request")
        prompt_length = len(record.prompt_token_ids)
        # As the real engine: an attempt that resumes after committed outputs has reported its prompt already.
        of_prompt = record.sampling.prompt_logprobs
        scores_prompt = of_prompt is not None and not record.output_token_ids
        self._sequences[record.sequence_id] = _Sequence(
            seed=record.sampling.seed,
            words=words,
            prompt_length=prompt_length,
            length=prompt_length + len(record.output_token_ids),
            logprobs=None if record.sampling.logprobs is None else _certain(record.sampling.logprobs, words),
            prompt_logprobs=(None, *[_certain(of_prompt or 0, words)] * (prompt_length - 1)) if scores_prompt else None,
        )

    def append_token(self, sequence_id: str, token_id: int) -> None:
        """Count a token that another worker sampled; which one follows from the seed."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            sequence.length += 1
            sequence.prompt_logprobs = None

    def drop_sequence(self, sequence_id: str) -> None:
        """Remove a sequence, known or not."""
        self._sequences.pop(sequence_id, None)

    def run_iteration(
        self,
        batch: Batch,
        on_finished: Callable[[tuple[SampledToken, ...]], None],
        on_failed: Callable[[Exception], None],
        on_layers: Callable[[int], None] | None = None,
    ) -> None:
        """Run a batch after those ordered before; `on_layers` is not called."""
        self._waiting.append((batch, on_finished, on_failed))
        if self._due_s is None:
            self._begin(time.monotonic())

    def swap_out(
        self, block_ids: tuple[int, ...], host_block_ids: tuple[int, ...], on_ended: Callable[[Exception | None], None]
    ) -> None:
        """End after the time that the blocks take to the host."""
        self._out_ends_s = self._move(self._out_ends_s, len(block_ids), on_ended)

    def swap_in(
        self, host_block_ids: tuple[int, ...], block_ids: tuple[int, ...], on_ended: Callable[[Exception | None], None]
    ) -> None:
        """End after the time that the blocks take from the host."""
        self._in_ends_s = self._move(self._in_ends_s, len(block_ids), on_ended)

    def _move(self, begins_s: float, blocks: int, on_ended: Callable[[Exception | None], None]) -> float:
        num_bytes = blocks * self.block_size * self.kv_bytes_per_token
        ends_s = max(begins_s, self._loop.time()) + self._host_link.transfer_s(num_bytes)
        number = next(self._numbers)

        def ended() -> None:
            if self._swaps.pop(number, None) is not None:
                on_ended(None)

        self._swaps[number] = on_ended
        self._loop.call_at(ends_s, ended)
        return ends_s

    def drop_all(self, reason: str) -> None:
        """Drop all iterations and sequences, without a word; swaps under way fail."""
        swaps = tuple(self._swaps.values())
        self.close()
        self._sequences.clear()
        self._due_s = self._timer = None
        self._carried_s = self._out_ends_s = self._in_ends_s = 0.0
        for on_ended in swaps:
            on_ended(MeshError(reason))

    def close(self) -> None:
        """Drop all iterations and swaps."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._swaps.clear()

    def _begin(self, now_s: float) -> None:
        work = self._waiting.popleft()
        shape = BatchShape.of(work[0])
        if self._measured is not None:
            self._note_beyond(self._measured, shape)
        self._due_s = now_s - self._carried_s + self._cost.iteration_s(shape)
        self._timer = self._loop.call_later(max(0.0, self._due_s - now_s), partial(self._end, work))

    def _note_beyond(self, measured: MeasuredRange, shape: BatchShape) -> None:
        for name in measured.exceeded(shape):
            if name not in self._exceeded:
                self._exceeded.add(name)
                _log.warning("cost_profile_exceeded", by=name, measured=getattr(measured, name), of=self.computes_with)

    def _end(self, work: _Work) -> None:
        batch, on_finished, on_failed = work
        now_s = time.monotonic()
        assert self._due_s is not None  # only what began ends
        self._carried_s = min(max(now_s - self._due_s, -_TIMER_S), _TIMER_S)
        self._due_s = self._timer = None
        try:
            sampled = self._sample(batch)
        except ValueError as error:
            on_failed(error)
        else:
            on_finished(sampled)
        if self._due_s is None:
            if self._waiting:
                self._begin(now_s)
            else:
                self._carried_s = 0.0

    def _sample(self, batch: Batch) -> tuple[SampledToken, ...]:
        ending = []
        for row in batch.rows:
            sequence = self._sequences.get(row.sequence_id)
            if sequence is None:
                raise ValueError(f"sequence {row.sequence_id} is not here")
            end = row.first_position + row.num_tokens
            if end > sequence.length:
                raise ValueError(f"row {row.sequence_id}: {end} tokens of a sequence of {sequence.length}")
            if end == sequence.length:
                ending.append((row.sequence_id, sequence))
        sampled = []  # from here on nothing fails: a failed batch is retried, and must not have sampled
        for sequence_id, sequence in ending:
            scores, sequence.prompt_logprobs = sequence.prompt_logprobs, None
            sampled.append(SampledToken(sequence_id, sequence.next_token(), sequence.logprobs, scores))
        return tuple(sampled)


def _certain(alternatives: int, words: Sequence[int]) -> TokenLogprobs:
    """Return the log-probabilities of a token that nothing competes with, and so many alternatives."""
    others = tuple(words[:alternatives])
    return TokenLogprobs(0.0, others, (_UNLIKELY,) * len(others))
