"""What the engine runs next, and what its results mean.

Law: iteration-level scheduling (Orca, section 4.1): between iterations finished sequences leave and waiting ones join. As many
iterations are in flight as the engine's pipeline has stages, one without a pipeline; they end in the order in which they were
ordered, and a sequence is in one of them at most. What fails is examined (`examination.py`). Decode rows and prefill rows
share an iteration; a prompt may take several, and its first token comes with the last of them. Rows are offered in the order
of the worker's discipline (`discipline.py`).

Invariants, but while a failure is examined: every runnable decode takes part as long as there are rows and blocks. FCFS: of
two sequences whose prompts are computed here and that are never preempted, the earlier has run at least as many iterations as
the later, but for those in which it lacked a block, or has ended; who has no blocks yet is not passed by a later one that has
none either. Where prompts come first (`prompts_first`), a prompt that has waited too long for blocks may also pass those that
were preempted and wait for theirs; where they do not, nobody loses blocks but to who came before.
"""

from __future__ import annotations

from spotwise.core.batching import Batch, BatchBuilder, BatchRow
from spotwise.core.messages import TokenDelta
from spotwise.core.request import FinishReason, RequestEvent, RequestState
from spotwise.core.sampling import SampledToken
from spotwise.core.worker import commands as c
from spotwise.core.worker.chunked_prefill import ChunkedPrefillBudget
from spotwise.core.worker.examination import Examination, ExaminationVerdict
from spotwise.core.worker.kv_allocator import KvAllocator
from spotwise.core.worker.policy import Batching, WorkerPolicy
from spotwise.core.worker.prompt_side import PromptSide
from spotwise.core.worker.runs import CountedRuns
from spotwise.core.worker.scheduling_policy import SchedulingPolicy
from spotwise.core.worker.sequence import Sequence
from spotwise.core.worker.sequence_table import SequenceTable

#: In the hand-off of a first token that was only counted.
UNNAMED_TOKEN = 0


class Iterations:
    """Builds batches and takes their results."""

    def __init__(
        self,
        table: SequenceTable,
        order: SchedulingPolicy,
        memory: KvAllocator,
        prompt_side: PromptSide,
        policy: WorkerPolicy,
    ) -> None:
        self.finished = 0
        self._table = table
        self._order = order
        self._allocator = memory
        self._prompt_side = prompt_side
        self._policy = policy
        self._prefill_budget = ChunkedPrefillBudget(policy.max_stall_s, policy.context_parity, policy.cost)
        self._runs = CountedRuns(table, policy)
        self._examination = Examination()
        #: Why the engine is of no use any more; `None` while it is.
        self.broken: str | None = None
        self._members: frozenset[str] = frozenset()
        self._decodes_bound_prompts = policy.max_stall_s is not None or policy.limits.max_num_batched_tokens is not None

    @property
    def prompt_token_s(self) -> float | None:
        """Seconds that a prompt token takes on this worker; `None` until some were computed, or a profile was given."""
        return self._prefill_budget.prompt_token_s

    def run_next(self, now: float) -> None:
        """SchedulingPolicy iterations, while there is a place for one in the engine's pipeline and something can run."""
        while self._table.iterations_in_flight < self._policy.max_in_flight:
            examined = self._examination.next_part()
            if examined is not None and self._table.iterations_in_flight:
                return  # one at a time: whose fault it was must be plain
            candidates = self._order.order(self._candidates() if examined is None else examined, now)
            self._allocator.start_round(candidates, now)
            members, batch = self._next_batch(candidates, now)
            if batch is not None:
                self._begin(members, batch, candidates, now, examines=examined is not None)
            self._allocator.end_round()
            if batch is None:
                if examined is None:
                    return
                self._examination.skip_part()

    def _begin(
        self,
        members: list[tuple[Sequence, int]],
        batch: Batch,
        candidates: list[Sequence],
        now: float,
        *,
        examines: bool,
    ) -> None:
        self._table.begin_iteration(members)
        self._prefill_budget.ordered(batch, now)
        somebody_waits = examines or len(members) < len(candidates)
        is_settled = not examines and (not somebody_waits or self._allocator.is_settled(candidates))
        steps = self._runs.begin(members, somebody_waits=somebody_waits, is_settled=is_settled)
        self._table.say(c.RunIteration(batch, steps))

    def end_run_after(self, event: c.WorkerEvent) -> None:
        """Cut the order in flight short, where an event that was handled changes what comes next."""
        if self._runs.is_ended_by(event):
            self._table.say(c.EndRun())

    def _next_batch(self, candidates: list[Sequence], now: float) -> tuple[list[tuple[Sequence, int]], Batch | None]:
        """Return who takes part, with how many tokens, and the batch of these."""
        if self._allocator.all_can_decode(candidates, self._policy.limits.max_num_seqs):
            rows = [BatchRow._make((s.sequence_id, s.computed_tokens, 1, s.block_ids)) for s in candidates]
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
        return members, builder.build()

    def _candidates(self) -> list[Sequence]:
        """Return who may take part, in order of arrival: all that can run, or the members of a batch until all have ended.

        Nobody takes part in two iterations at once. A batch of requests is who could run when the last one was over. The
        slots of those that end early stay empty; their tokens go out at once all the same, so the baseline is a little better
        than its model.
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
        """Let a prompt join if it may, and return with how many tokens."""
        reused = self._allocator.prefixes.reusable_blocks(sequence)
        if not self._allocator.can_admit(sequence, reused):
            return 0
        cached_tokens = len(reused) * self._table.pool.block_size
        first_position = sequence.computed_tokens + cached_tokens
        tokens = builder.room_for_prompt(sequence.uncomputed_tokens - cached_tokens, first_position)
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

    def iteration_finished(self, event: c.IterationFinished, now: float) -> None:
        """Publish the tokens, end what ended, hand off what was prefilled for another worker."""
        self.finished += 1
        self._prefill_budget.ended(now)
        members = self._table.end_iteration()
        self._examination.succeeded(members)
        for sequence, tokens in members:
            sequence.computed_tokens += tokens
            self._allocator.prefixes.enter_computed(sequence)
        self._order.ran(members, now)
        for sampled in event.sampled:
            sequence_or_none = self._table.by_id(sampled.sequence_id)
            if sequence_or_none is not None:
                self._token_sampled(sequence_or_none, sampled, now)

    def iterations_counted(self, event: c.IterationsCounted, now: float) -> None:
        """The same for iterations whose tokens carry no ids: none ends before its length."""
        self.finished += event.steps
        if not self._runs.count(event.steps, ended=event.ended):
            return
        self._prefill_budget.ended(now)
        if event.steps > 1:
            self._runs.advance(event.steps)
            members = self._table.end_iteration()
            self._examination.succeeded(members)
            for sequence, _ in members:
                if sequence.remaining_tokens <= 0:
                    self._token_counted(sequence, now)
            return
        members, prefixes = self._table.end_iteration(), self._allocator.prefixes
        self._examination.succeeded(members)
        for sequence, tokens in members:
            sequence.computed_tokens += tokens
            if prefixes.is_enabled:
                prefixes.enter_computed(sequence)
        self._order.ran(members, now)
        for sequence, _ in members:
            if sequence.computed_tokens == sequence.known_tokens:
                sequence.count_tokens(1)
                if sequence.produced_here == 1 or sequence.remaining_tokens <= 0:
                    self._token_counted(sequence, now)

    def iteration_failed(self, event: c.IterationFailed, now: float) -> None:
        """Try the batch again in parts; of whom it is known that the engine fails with it, or where it always does, give up.

        Nothing is undone: positions, tokens and the prefix cache advance with a result only, and the KV that was written is
        written again.
        """
        self._runs.count(1, ended=True)
        self._prefill_budget.ended(now, failed=True)
        members = [sequence for sequence, _ in self._table.end_iteration()]
        match self._examination.failed(members):
            case ExaminationVerdict.CULPRIT:
                reason = f"the engine fails with this request: {event.reason}"
                self._table.fail(members[0], reason, now, retryable=False)
            case ExaminationVerdict.GIVE_BACK:
                self._give_back(members, f"the engine failed with this request alone: {event.reason}", now)
            case ExaminationVerdict.ENGINE_FAILS:
                self.broken = f"the engine fails for every request: {event.reason}"
                self._give_back([each for each in self._table if not each.pending_free], self.broken, now)

    def _give_back(self, sequences: list[Sequence], reason: str, now: float) -> None:
        """Let other workers try."""
        for sequence in sequences:
            self._table.fail(sequence, reason, now, retryable=True, suspects=(self._table.worker_id,))

    def _token_sampled(self, sequence: Sequence, sampled: SampledToken, now: float) -> None:
        assert sequence.stop is not None  # what has no record is in no batch
        sequence.count_tokens(1)
        sequence.token_ids.append(sampled.token_id)
        finish_reason = sequence.stop.finish_reason(sampled.token_id, sequence.output_tokens)
        self._publish(sequence, finish_reason, sampled)
        self._go_on(sequence, finish_reason, sampled.token_id, now)

    def _token_counted(self, sequence: Sequence, now: float) -> None:
        """Publish the first or the last of a sequence's counted tokens, and do what follows from it."""
        finish_reason = FinishReason.LENGTH if sequence.remaining_tokens <= 0 else None
        self._publish(sequence, finish_reason, None)
        self._go_on(sequence, finish_reason, UNNAMED_TOKEN, now)

    def _publish(self, sequence: Sequence, finish_reason: FinishReason | None, sampled: SampledToken | None) -> None:
        """Tell the gateway of the newest token; where it is only counted, of an ending after so many."""
        is_ending = sampled is None and finish_reason is not None
        queue_s = cached_tokens = None
        if _is_prefilled_now(sequence):
            assert sequence.started_s is not None
            queue_s, cached_tokens = sequence.started_s - sequence.arrived_s, sequence.cached_tokens
        self._table.publish(
            sequence.stream,
            TokenDelta(
                attempt_id=sequence.stream.attempt_id,
                token_index=sequence.output_tokens - (0 if is_ending else 1),
                token_id=sampled.token_id if sampled else None,
                finish_reason=finish_reason,
                queue_s=queue_s,
                cached_tokens=cached_tokens,
                logprobs=sampled.logprobs if sampled else None,
                prompt_logprobs=sampled.prompt_logprobs if sampled else None,
            ),
        )

    def _go_on(self, sequence: Sequence, finish_reason: FinishReason | None, token_id: int, now: float) -> None:
        """Do what follows from a token."""
        if _is_prefilled_now(sequence):
            self._record_prefill(sequence, now)
        if finish_reason is not None:
            self._finish(sequence, finish_reason, now)
        elif not sequence.decodes_here:
            self._prompt_side.hand_off(sequence, token_id)

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
