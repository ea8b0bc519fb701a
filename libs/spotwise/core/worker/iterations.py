"""What the engine runs next, and what its results mean.

Law: iteration-level scheduling (Orca, section 4.1): between iterations finished sequences leave and waiting ones join. As many
iterations are in flight as the engine's pipeline has stages, one without a pipeline; they end in the order in which they were
ordered, and a sequence is in one of them at most. Decode rows and prefill rows share an iteration; a prompt may take several,
and its first token comes with the last of them.

Invariants: FCFS: of two sequences whose prompts are computed here and that are never preempted, the earlier has run at least
as many iterations as the later, or has ended; who has no blocks yet is not passed by a later one that has none either, while
a reservation is a place in memory already given; every runnable decode takes part as long as there are rows and blocks.
"""

from __future__ import annotations

from spotwise.core.batching import Batch, BatchBuilder, BatchRow
from spotwise.core.messages import TokenDelta
from spotwise.core.request import FinishReason, RequestEvent, RequestState
from spotwise.core.sampling import SampledToken
from spotwise.core.worker import commands as c
from spotwise.core.worker.holdings import Holdings
from spotwise.core.worker.memory import Memory
from spotwise.core.worker.pace import Pace
from spotwise.core.worker.policy import Batching, WorkerPolicy
from spotwise.core.worker.prompt_side import PromptSide
from spotwise.core.worker.sequence import Sequence


class Iterations:
    """Builds batches and takes their results."""

    def __init__(self, holdings: Holdings, memory: Memory, prompt_side: PromptSide, policy: WorkerPolicy) -> None:
        self.finished = 0
        self._holdings = holdings
        self._memory = memory
        self._prompt_side = prompt_side
        self._policy = policy
        self._pace = Pace(policy.max_stall_s, policy.context_parity)
        self._members: frozenset[str] = frozenset()

    def run_next(self, now: float) -> None:
        """Order iterations, while there is a place for one in the engine's pipeline and something can run."""
        while self._holdings.iterations_in_flight < self._policy.max_in_flight:
            batch = self._next_batch(now)
            if batch is None:
                return
            self._holdings.begin_iteration({row.sequence_id: row.num_tokens for row in batch.rows})
            self._pace.ordered(batch, now)
            self._holdings.say(c.RunIteration(batch))

    def _next_batch(self, now: float) -> Batch | None:
        candidates = self._candidates()
        contexts = [sequence.known_tokens for sequence in candidates if sequence.is_decoding]
        builder = BatchBuilder(self._policy.limits, len(contexts), self._pace.budget(contexts))
        self._memory.start_round()
        for sequence in candidates:
            if builder.is_full:
                break
            if sequence.is_decoding:
                if self._memory.grow(sequence, now):
                    builder.add_decode(_row(sequence, 1))
            else:
                self._offer_prompt(builder, sequence, now)
        return builder.build()

    def _candidates(self) -> list[Sequence]:
        """Return who may take part, in order of arrival: all that can run, or the members of a batch until all have ended.

        Nobody takes part in two iterations at once. A batch of requests is who could run when the last one was over. The
        slots of those that end early stay empty; their tokens go out at once all the same, so the baseline is a little better
        than its model.
        """
        runnable = [sequence for sequence in self._holdings if sequence.is_runnable]
        if self._policy.batching is Batching.REQUEST_LEVEL:
            members = [sequence for sequence in runnable if sequence.sequence_id in self._members]
            if not any(sequence.block_ids for sequence in members):
                members = runnable[: self._policy.limits.max_num_seqs]
                self._members = frozenset(sequence.sequence_id for sequence in members)
            runnable = members
        return [sequence for sequence in runnable if not self._holdings.in_iteration(sequence)]

    def _offer_prompt(self, builder: BatchBuilder, sequence: Sequence, now: float) -> None:
        reused = self._memory.prefixes.reusable_blocks(sequence)
        if not self._memory.can_admit(sequence, reused):
            return
        cached_tokens = len(reused) * self._holdings.pool.block_size
        first_position = sequence.computed_tokens + cached_tokens
        tokens = builder.room_for_prompt(sequence.uncomputed_tokens - cached_tokens, first_position)
        if tokens == 0:
            return
        self._memory.admit(sequence, reused)
        if sequence.state is RequestState.WAITING:
            sequence.advance(RequestEvent.PREFILL_STARTED)
            sequence.started_s, sequence.prefilled_here = now, True
            sequence.cached_tokens = cached_tokens
            self._prompt_side.prefill_started(sequence)
        elif sequence.state is RequestState.PREEMPTED:
            sequence.advance(RequestEvent.RESUMED)
        builder.add_prompt(_row(sequence, tokens))

    def iteration_finished(self, event: c.IterationFinished, now: float) -> None:
        """Publish the tokens, end what ended, hand off what was prefilled for another worker."""
        self.finished += 1
        self._pace.ended(now)
        for sequence, tokens in self._holdings.end_iteration():
            sequence.computed_tokens += tokens
            self._memory.prefixes.enter_computed(sequence)
        for sampled in event.sampled:
            sequence_or_none = self._holdings.by_id(sampled.sequence_id)
            if sequence_or_none is not None:
                self._token_sampled(sequence_or_none, sampled, now)

    def iteration_failed(self, event: c.IterationFailed, now: float) -> None:
        """Give up what was in the batch: what the engine did to it is unknown."""
        self._pace.ended(now)
        for sequence, _ in self._holdings.end_iteration():
            self._holdings.fail(sequence, f"the engine failed: {event.reason}", now, retryable=False)

    def _token_sampled(self, sequence: Sequence, sampled: SampledToken, now: float) -> None:
        assert sequence.stop is not None  # what has no record is in no batch
        index = sequence.output_tokens
        sequence.output_tokens += 1
        sequence.produced_here += 1
        sequence.known_tokens += 1
        sequence.token_ids.append(sampled.token_id)
        finish_reason = sequence.stop.finish_reason(sampled.token_id, sequence.output_tokens)
        prefilled_now = sequence.prefilled_here and sequence.produced_here == 1
        queue_s = (sequence.started_s or now) - sequence.arrived_s if prefilled_now else None
        self._holdings.publish(
            sequence.stream.gateway_id,
            TokenDelta(
                stream_id=sequence.stream.stream_id,
                token_index=index,
                token_id=sampled.token_id,
                finish_reason=finish_reason,
                queue_s=queue_s,
                cached_tokens=sequence.cached_tokens if prefilled_now else None,
                logprobs=sampled.logprobs,
                prompt_logprobs=sampled.prompt_logprobs,
            ),
        )
        if prefilled_now:
            self._record_prefill(sequence, now)
        if finish_reason is not None:
            self._finish(sequence, finish_reason, now)
        elif not sequence.decodes_here:
            self._prompt_side.hand_off(sequence, sampled.token_id)

    def _record_prefill(self, sequence: Sequence, now: float) -> None:
        assert sequence.started_s is not None
        self._holdings.record(
            sequence,
            "prefilled",
            now,
            prompt_tokens=sequence.computed_tokens,
            cached_tokens=sequence.cached_tokens,
            queue_s=sequence.started_s - sequence.arrived_s,
            prefill_s=now - sequence.started_s,
        )
        sequence.started_s = now  # of the token phase

    def _finish(self, sequence: Sequence, finish_reason: FinishReason, now: float) -> None:
        if sequence.decodes_here:
            assert sequence.started_s is not None
            tokens = sequence.produced_here - sequence.prefilled_here
            decode_s = now - sequence.started_s
            self._holdings.record(
                sequence, "decoded", now, tokens=tokens, decode_s=decode_s, finish_reason=finish_reason.value
            )
        self._holdings.cancel_target(sequence)
        self._holdings.end(sequence, finish_reason)


def _row(sequence: Sequence, tokens: int) -> BatchRow:
    return BatchRow(sequence.sequence_id, sequence.computed_tokens, tokens, sequence.block_ids)
