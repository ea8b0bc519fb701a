"""Measures the iteration costs of a worker's engine before it joins, over prompts and decodes of doubling size. Four sections:
prompts, prompt chunks after a computed prefix, decodes over short and long contexts, and mixed batches; each from small to
large within its share of the time allowed, so that a slow machine measures fewer steps. The smallest prompt and decode are
always measured. A step runs several times, and its first run, which warms up, counts only where there was no other. Decodes
attend to blocks that prompts have written, since unwritten pages would be read for free. All sequences are removed
afterwards.
Source: FastServe (Wu et al., 2023), section 4.1, profiles the first iteration's time by prompt length; steps and fit are this
project's (`cost_fit.py`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.costs.cost_model import BatchShape, IterationTime
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SampledToken, SamplingParams
from spotwise.worker.worker_engine import WorkerEngine

_log = structlog.get_logger(__name__)

_SHORTEST_PROMPT, _LONGEST_PROMPT = 16, 2048
_SHORT_CONTEXT, _LONG_CONTEXT = 32, 1024
_WIDEST = 32
#: Tokens of a prompt chunk: about what fits beside decodes.
_LONGEST_PART = 256
#: Of one step; each run adds a token to a decode's sequences.
_MOST_RUNS = 6
#: A step is repeated until it has taken this share of the time allowed, at least twice.
_STEP_SHARE = 1 / 80


@dataclass(frozen=True, slots=True)
class ProfileStep:
    """The work of one iteration.

    Attributes:
        prompt_tokens: tokens of one prompt; 0: none.
        position: position of the first of them.
        decodes: sequences that decode.
        context: tokens that each decode attends to at first.
    """

    prompt_tokens: int = 0
    position: int = 0
    decodes: int = 0
    context: int = 0


@dataclass(frozen=True, slots=True)
class ProfileSection:
    """Steps of one kind, from small to large.

    Attributes:
        until: share of the time allowed at which the section ends.
        steps: in order, each of at most about twice as much work as the one before.
        is_needed: the first step runs also after `until`.
    """

    until: float
    steps: tuple[ProfileStep, ...]
    is_needed: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredIterations:
    """The measured iterations; `times` are of all runs that count, `seconds` of the whole measurement."""

    times: tuple[IterationTime, ...]
    seconds: float

    @property
    def longest_prompt(self) -> int:
        """Prompt tokens of the largest iteration."""
        return max((time.shape.prompt_tokens for time in self.times), default=0)

    @property
    def widest(self) -> int:
        """Most sequences that decoded at once."""
        return max((time.shape.decodes for time in self.times), default=0)


def profile_sections(
    num_blocks: int, block_size: int, context_length: int, max_num_seqs: int
) -> tuple[ProfileSection, ...]:
    """Return the sections for an engine of these sizes, all of which fit into its blocks and its context; raises `ValueError`
    where a prompt and its decodes do not fit.
    """
    capacity = min(num_blocks * block_size, context_length)
    if capacity < 2 * _MOST_RUNS:
        raise ValueError(f"{capacity} tokens of KV and context are too few to measure anything")
    far = min(_LONG_CONTEXT, capacity // 2)
    sizes = _doubling(_SHORTEST_PROMPT, min(_LONGEST_PROMPT, capacity - 1))
    parts = [size for size in sizes if size <= min(_LONGEST_PART, far)]
    contexts = sorted({min(context, far) for context in (_SHORT_CONTEXT, _LONG_CONTEXT // 4, _LONG_CONTEXT)})
    own_blocks = max(_own_blocks(context, block_size) for context in contexts)
    widths = _doubling(1, max(1, min(_WIDEST, max_num_seqs, num_blocks // own_blocks)))
    # Beside a prompt, a typical number of decodes and a single one: the sum of both costs depends on both.
    beside = [
        ProfileStep(size, 0, width, contexts[len(contexts) // 2])
        for size, widest in zip(parts, widths, strict=False)
        for width in sorted({1, widest})
        if width < max_num_seqs
    ]
    behind = far // block_size * block_size
    return (
        ProfileSection(0.55, tuple(ProfileStep(size) for size in sizes), is_needed=True),
        ProfileSection(0.65, tuple(ProfileStep(size, behind) for size in parts if behind)),
        ProfileSection(
            0.9,
            tuple(ProfileStep(decodes=width, context=context) for width in widths for context in contexts),
            is_needed=True,
        ),
        ProfileSection(1.0, tuple(beside)),
    )


async def measure_iterations(
    engine: WorkerEngine,
    vocab_size: int,
    sections: Sequence[ProfileSection],
    allowed_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> MeasuredIterations:
    """Run and time the steps of `profile_sections` on an idle engine, all of whose blocks are free.

    Args:
        vocab_size: token ids are below this.
        allowed_s: about how long it may take.
        clock: monotonic, in seconds.
    """
    bench = _Bench(engine, vocab_size, clock)
    started_s = clock()
    times: list[IterationTime] = []
    for section in sections:
        ends_s = started_s + section.until * allowed_s
        run_s = 0.0  # of the step before
        for index, step in enumerate(section.steps):
            if not (section.is_needed and index == 0) and clock() + 2 * run_s > ends_s:
                break
            runs = await bench.run(step, ends_s, _STEP_SHARE * allowed_s)
            if not runs:
                break
            run_s = runs[-1].seconds
            times += runs[1:] or runs
    return MeasuredIterations(tuple(times), clock() - started_s)


class _Bench:
    def __init__(self, engine: WorkerEngine, vocab_size: int, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._tokens = random.Random(0).choices(range(vocab_size), k=4 * _LONGEST_PROMPT)
        self._next_block = 0
        self._written = 0
        self._next_written = 0
        self._names = 0

    async def run(self, step: ProfileStep, ends_s: float, enough_s: float) -> list[IterationTime]:
        """Run a step until it has taken `enough_s`, or another run would end after `ends_s`; none where the engine fails."""
        runs: list[IterationTime] = []
        decoding: list[BatchRow] = []
        try:
            for index in range(step.decodes):
                blocks = self._decode_blocks(step, index)
                decoding.append(await self._sequence(step.context, step.context - 1, blocks))
            while len(runs) < _MOST_RUNS:
                runs.append(await self._run_once(step, [_later(row, len(runs)) for row in decoding]))
                taken_s = sum(run.seconds for run in runs)
                if (len(runs) > 1 and taken_s >= enough_s) or self._clock() + runs[-1].seconds > ends_s:
                    break
        except (RuntimeError, ValueError) as error:  # as of a device without memory for so large a batch
            _log.warning("cost_profile_step_failed", step=str(step), reason=str(error))
        finally:
            for row in decoding:
                self._engine.drop_sequence(row.sequence_id)
        return runs

    async def _run_once(self, step: ProfileStep, rows: list[BatchRow]) -> IterationTime:
        if not step.prompt_tokens:
            return await self._timed(Batch(tuple(rows)))
        # A new one each time: a prompt computed to its end has grown by a token.
        tokens = step.position + step.prompt_tokens
        prompt = await self._sequence(tokens, step.position, self._prompt_blocks(step))
        try:
            return await self._timed(Batch((*rows, prompt)))
        finally:
            self._engine.drop_sequence(prompt.sequence_id)

    async def _timed(self, batch: Batch) -> IterationTime:
        ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        def finished(sampled: tuple[SampledToken, ...]) -> None:
            if not ended.done():
                ended.set_result(self._clock())

        def failed(error: Exception) -> None:
            if not ended.done():
                ended.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

        ordered_s = self._clock()
        self._engine.run_iteration(batch, finished, failed)
        return IterationTime(BatchShape.of(batch), await ended - ordered_s)

    async def _sequence(self, tokens: int, position: int, block_ids: tuple[int, ...]) -> BatchRow:
        self._names += 1
        start = self._names % _LONGEST_PROMPT
        record = RequestRecord(
            choice_id=f"profile-{self._names}",
            epoch=1,
            gateway_id="",
            attempt_id=0,
            model="",
            prompt_token_ids=tuple(self._tokens[start : start + tokens]),
            output_token_ids=(),
            sampling=SamplingParams(temperature=0.0),
            stop=StopCriteria(max_new_tokens=2 * _MOST_RUNS),
            arrival_unix_s=0.0,
        )
        await self._engine.add_sequence(record)
        return BatchRow(record.sequence_id, position, tokens - position, block_ids)

    def _prompt_blocks(self, step: ProfileStep) -> tuple[int, ...]:
        """Return blocks for a prompt: written ones for its prefix, then the cache's in turn."""
        total, size = self._engine.num_blocks, self._engine.block_size
        before = step.position // size
        own = -(-(step.position + step.prompt_tokens) // size) - before
        blocks = [(self._next_block + index) % total for index in range(own)]
        self._next_block = (self._next_block + own) % total
        shared = self._written_blocks(before)
        self._written = min(total, self._written + own)
        return (*shared, *blocks)

    def _decode_blocks(self, step: ProfileStep, index: int) -> tuple[int, ...]:
        """Return blocks for a sequence that decodes: written ones, then its own from the cache's end."""
        total, size = self._engine.num_blocks, self._engine.block_size
        own = _own_blocks(step.context, size)
        first = total - (index + 1) * own
        return (*self._written_blocks((step.context - 1) // size), *range(first, first + own))

    def _written_blocks(self, count: int) -> tuple[int, ...]:
        """Return `count` blocks that prompts have written, in turn, repeated where there are fewer."""
        among = max(1, self._written)
        blocks = tuple((self._next_written + index) % among for index in range(count))
        self._next_written = (self._next_written + count) % among
        return blocks


def _own_blocks(context: int, block_size: int) -> int:
    return (context - 1 + _MOST_RUNS - 1) // block_size - (context - 1) // block_size + 1


def _later(row: BatchRow, runs: int) -> BatchRow:
    return row._replace(first_position=row.first_position + runs)


def _doubling(first: int, last: int) -> list[int]:
    values = [min(first, last)]
    while 2 * values[-1] <= last:
        values.append(2 * values[-1])
    return values
