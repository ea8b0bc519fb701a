"""Builds the engine's next iteration, and applies its results.

Law: between iterations finished sequences leave and waiting ones join (iteration-level scheduling: Orca, section 4.1).
Decode rows and prefill rows share an iteration; rows are offered in the order of the worker's scheduling policy.
As many iterations are in flight as the engine's pipeline has stages; a sequence is in one of them at most.
Outside an examination of a failure, every runnable decode takes part as long as there are rows and blocks, and none pauses.
Under FCFS a sequence without blocks is not passed by a later one without blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spotwise.core.costs.batching import Batch, BatchBuilder, BatchRow
from spotwise.core.messages.mesh import TokenDelta
from spotwise.core.requests.request import FinishReason, RequestEvent, RequestState
from spotwise.core.requests.sampling import ENGINE_FAILS, SampledToken, TokenLogprobs
from spotwise.core.worker import commands as c
from spotwise.core.worker.kv.allocator import KvAllocator
from spotwise.core.worker.policy import Batching, WorkerPolicy
from spotwise.core.worker.scheduling.chunked_prefill import ChunkedPrefillBudget
from spotwise.core.worker.scheduling.examination import Examination, ExaminationVerdict
from spotwise.core.worker.scheduling.policy import SchedulingPolicy
from spotwise.core.worker.sequences.held_work import WorkInFlight
from spotwise.core.worker.sequences.moves import MoveSide
from spotwise.core.worker.sequences.prompt_side import PromptSide
from spotwise.core.worker.sequences.sequence import Sequence
from spotwise.core.worker.sequences.table import SequenceTable


class Iterations:
    """Builds batches and handles their results; `broken` is why the engine is of no use any more, `None` while it works."""

    def __init__(
        self,
        table: SequenceTable,
        order: SchedulingPolicy,
        allocator: KvAllocator,
        prompt_side: PromptSide,
        moves: MoveSide,
        policy: WorkerPolicy,
    ) -> None:
        self.finished = 0
        self.broken: str | None = None
        self._table = table
        self._order = order
        self._allocator = allocator
        self._prompt_side = prompt_side
        self._moves = moves
        self._policy = policy
        self._prefill_budget = ChunkedPrefillBudget(policy.max_stall_s, policy.context_parity, policy.cost)
        self._examination = Examination()
        self._members: frozenset[str] = frozenset()  #: of a request-level batch
        self._decodes_bound_prompts = policy.max_stall_s is not None or policy.limits.max_num_batched_tokens is not None

    @property
    def step_s(self) -> float | None:
        """Seconds of an iteration of late; `None` before the first."""
        return self._prefill_budget.iteration_s

    def handlers(self) -> dict[type, Callable[[Any, float], None]]:
        """Return what handles the engine's events."""
        return {c.IterationFinished: self._iteration_finished, c.IterationFailed: self._iteration_failed}

    def take_over(self, in_flight: WorkInFlight | None, budget: ChunkedPrefillBudget) -> None:
        """Go on with an iteration that runs already, and with what earlier ones have taught."""
        self._prefill_budget = budget
        if in_flight is not None:
            self._table.begin_iteration(in_flight.members)
            if not in_flight.is_noted:
                budget.ordered(in_flight.batch, in_flight.began_s)

    @property
    def prefill_budget(self) -> ChunkedPrefillBudget:
        """What bounds prompts, with what it has learned."""
        return self._prefill_budget

    def drop_all(self, now: float) -> None:
        """Forget the iterations in flight: the engine that ran them is gone."""
        self._prefill_budget.dropped(now)
        self._table.drop_iterations()
        self._examination = Examination()

    def give_back_computed(self, reason: str, now: float) -> None:
        """Give back the sequences of the iterations in flight: one of them may be why these do not end."""
        self._give_back([each for each in self._table if each.in_iteration and not each.pending_free], reason, now)

    def run_next(self, event: c.WorkerEvent, now: float) -> None:
        """Order iterations while the engine's pipeline has a free stage and something can run; `event` was handled."""
        while self._table.iterations_in_flight < self._policy.max_in_flight:
            examined = self._examination.next_part()
            if examined is not None and self._table.iterations_in_flight:
                return  # one at a time, so that a failure is its members' own
            candidates = self._order.order(self._candidates() if examined is None else examined, now)
            self._allocator.begin_step(candidates, now)
            members, batch = self._next_batch(candidates, now)
            if batch is not None:
                self._table.begin_iteration(members)
                self._prefill_budget.ordered(batch, now)
                steps = self._steps(members, candidates, examines=examined is not None)
                self._table.emit(c.RunIteration(batch, steps))
            self._allocator.end_step()
            if batch is None:
                if examined is None:
                    return
                self._examination.skip_part()

    def _steps(self, members: list[tuple[Sequence, int]], candidates: list[Sequence], *, examines: bool) -> int:
        """One: its tokens decide what comes next."""
        return 1

    def _next_batch(self, candidates: list[Sequence], now: float) -> tuple[list[tuple[Sequence, int]], Batch | None]:
        if self._allocator.all_can_decode(candidates, self._policy.limits.max_num_seqs):
            new = tuple.__new__  # in a third of the time of the class's own, which is Python
            rows = [new(BatchRow, (s.sequence_id, s.computed_tokens, 1, s.block_ids)) for s in candidates]
            return [(sequence, 1) for sequence in candidates], Batch(tuple(rows)) if rows else None
        first = candidates[: self._policy.limits.max_num_seqs]
        contexts = [s.known_tokens for s in first if s.is_decoding] if self._decodes_bound_prompts else []
        builder = BatchBuilder(self._policy.limits, len(contexts), self._prefill_budget.budget(contexts))
        members: list[tuple[Sequence, int]] = []
        for sequence in candidates:
            if builder.is_full:
                break
            if sequence.is_decoding:
                if self._allocator.grow(sequence, now):
                    builder.add_decode(_row(sequence, 1))
                    members.append((sequence, 1))
            elif tokens := self._offer_prompt(builder, sequence, now):
                members.append((sequence, tokens))
        batch = builder.build()
        if batch is not None and len(batch.rows) < len(members):
            running = {row.sequence_id for row in batch.rows}
            members = [member for member in members if member[0].sequence_id in running]
        return members, batch

    def _candidates(self) -> list[Sequence]:
        """Return the sequences that may take part, in order of arrival; with request-level batching the members of the batch
        until all have ended. Tokens of members that end early go out at once: this baseline is a little better than its model.
        """
        table = self._table
        runnable = [sequence for sequence in table if sequence.is_runnable]
        if self._policy.batching is Batching.REQUEST_LEVEL:
            members = [sequence for sequence in runnable if sequence.sequence_id in self._members]
            if not any(sequence.block_ids for sequence in members):
                members = runnable[: self._policy.limits.max_num_seqs]
                self._members = frozenset(sequence.sequence_id for sequence in members)
            runnable = members
        if not table.iterations_in_flight:
            return runnable
        return [sequence for sequence in runnable if not sequence.in_iteration]

    def _offer_prompt(self, builder: BatchBuilder, sequence: Sequence, now: float) -> int:
        reused = self._allocator.prefixes.reusable_blocks(sequence)
        if not self._allocator.can_admit(sequence, reused):
            return 0
        cached_tokens = len(reused) * self._table.pool.block_size
        first_position = sequence.computed_tokens + cached_tokens
        tokens = builder.chunk_tokens(sequence.uncomputed_tokens - cached_tokens, first_position)
        if tokens == 0:
            return 0
        self._allocator.admit(sequence, reused)
        if sequence.state is RequestState.WAITING:
            sequence.advance(RequestEvent.PREFILL_STARTED)
            sequence.started_s, sequence.prefilled_here = now, True
            sequence.cached_tokens = cached_tokens
            self._prompt_side.prefill_started(sequence)
        elif sequence.state is RequestState.PREEMPTED:
            sequence.advance(RequestEvent.RESUMED)
        builder.add_prompt(_row(sequence, tokens))
        return tokens

    def _iteration_finished(self, event: c.IterationFinished, now: float) -> None:
        self.finished += 1
        self._prefill_budget.ended(now)
        members = self._table.end_iteration()
        self._examination.succeeded(members)
        self._count_computed(members, now)
        for sampled in event.sampled:
            sequence = self._table.by_id(sampled.sequence_id)
            if sequence is not None:
                self._token_sampled(sequence, sampled, now)

    def _count_computed(self, members: list[tuple[Sequence, int]], now: float) -> None:
        prefixes = self._allocator.prefixes
        for sequence, tokens in members:
            sequence.computed_tokens += tokens
            if prefixes.is_enabled:
                prefixes.enter_computed(sequence)
        self._order.ran(members, now)

    def _iteration_failed(self, event: c.IterationFailed, now: float) -> None:
        """Run the batch again in parts; fail sequences that are at fault, and all where the engine is. Nothing is undone:
        positions, tokens and the prefix cache advance with a result only, and written KV is written again.
        """
        self._prefill_budget.ended(now, failed=True)
        members = [sequence for sequence, _ in self._table.end_iteration(failed=True)]
        match self._examination.failed(members):
            case ExaminationVerdict.CULPRIT:
                reason = f"{ENGINE_FAILS}: {event.reason}"
                self._table.fail(members[0], reason, now, retryable=False)
            case ExaminationVerdict.GIVE_BACK:
                self._give_back(members, f"the engine failed with this request alone: {event.reason}", now)
            case ExaminationVerdict.ENGINE_FAILS:
                self.broken = f"the engine fails for every request: {event.reason}"
                self._give_back([each for each in self._table if not each.pending_free], self.broken, now)
        self._moves.iteration_failed(members, now)

    def _give_back(self, sequences: list[Sequence], reason: str, now: float) -> None:
        for sequence in sequences:
            if sequence.may_be_elsewhere:  # it is no failure where another worker has it
                self._moves.give_up(sequence)
            else:
                self._table.fail(sequence, reason, now, retryable=True, suspects=(self._table.worker_id,))

    def _token_sampled(self, sequence: Sequence, sampled: SampledToken, now: float) -> None:
        assert sequence.stop is not None  # a sequence without its record is in no batch
        if sampled.failure is not None:
            # Numbers that are none come of the model, or of a machine that computes wrong: one other worker tries it, too.
            is_retried = sampled.may_be_ill and sequence.epoch == 1
            suspects = (self._table.worker_id,) if is_retried else ()
            if sampled.may_be_ill:
                self._allocator.prefixes.forget()  # the engine has made zeros of what is no number in its blocks
            self._table.fail(sequence, sampled.failure, now, retryable=is_retried, suspects=suspects)
            return
        sequence.count_tokens(1)
        sequence.token_ids.append(sampled.token_id)
        finish_reason = sequence.stop.finish_reason(sampled.token_id, sequence.output_tokens)
        self._publish(
            sequence,
            sequence.output_tokens - 1,
            sampled.token_id,
            finish_reason,
            logprobs=sampled.logprobs,
            prompt_logprobs=sampled.prompt_logprobs,
            embedding=sampled.embedding,
        )
        self._after_token(sequence, finish_reason, sampled.token_id, now)

    def _publish(
        self,
        sequence: Sequence,
        token_index: int,
        token_id: int | None,
        finish_reason: FinishReason | None,
        *,
        logprobs: TokenLogprobs | None = None,
        prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None,
        embedding: tuple[float, ...] | None = None,
    ) -> None:
        queue_s = cached_tokens = None
        if _is_prefilled_now(sequence):
            assert sequence.started_s is not None
            queue_s, cached_tokens = sequence.started_s - sequence.arrived_s, sequence.cached_tokens
        self._table.publish(
            sequence.stream,
            TokenDelta(
                attempt_id=sequence.stream.attempt_id,
                token_index=token_index,
                token_id=token_id,
                finish_reason=finish_reason,
                queue_s=queue_s,
                cached_tokens=cached_tokens,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
                embedding=embedding,
            ),
        )

    def _after_token(self, sequence: Sequence, finish_reason: FinishReason | None, token_id: int, now: float) -> None:
        if _is_prefilled_now(sequence):
            self._record_prefill(sequence, now)
        if finish_reason is not None:
            self._finish(sequence, finish_reason, now)
        elif not sequence.decodes_here:
            self._prompt_side.hand_off(sequence, token_id)
        else:
            self._moves.token_sampled(sequence, now)

    def _record_prefill(self, sequence: Sequence, now: float) -> None:
        assert sequence.started_s is not None
        self._table.record(
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
            self._table.record(
                sequence, "decoded", now, tokens=tokens, decode_s=decode_s, finish_reason=finish_reason.value
            )
        self._table.cancel_target(sequence)
        self._table.end(sequence, finish_reason)


def _is_prefilled_now(sequence: Sequence) -> bool:
    return sequence.prefilled_here and sequence.produced_here == 1


def _row(sequence: Sequence, tokens: int) -> BatchRow:
    return BatchRow(sequence.sequence_id, sequence.computed_tokens, tokens, sequence.block_ids)
