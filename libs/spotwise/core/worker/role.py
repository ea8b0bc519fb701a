"""One worker's state machine: what it accepts, what it runs next, when it leaves.

Law: a worker computes prompts, tokens, or both; its home pool restricts nothing (mixed machines: Splitwise, section 4.1).
Every sequence ends handed off, finished or pending_free, exactly once; after the last one all blocks are free.
Orders of an earlier scheduler's term are refused: that scheduler was replaced and does not know it (`core/membership/term.py`).
A sequence ends at its client's deadline, and one that is overdue when its record is loaded is never computed.
A draining worker accepts no reservation and no request of its own, and leaves when it holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from spotwise.core.kv.blocks import BlockPool
from spotwise.core.latest import LatestDict
from spotwise.core.membership.confirmation import Confirmations
from spotwise.core.membership.term import TermFence
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.requests.request import RequestState
from spotwise.core.worker import commands as c
from spotwise.core.worker.kv.allocator import KvAllocator
from spotwise.core.worker.kv.fcfs_allocator import FcfsKvAllocator
from spotwise.core.worker.kv.preemptive_allocator import PreemptiveKvAllocator
from spotwise.core.worker.kv.prefix_cache import PrefixCache
from spotwise.core.worker.kv.swaps import Swaps
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.scheduling.counted_iterations import CountedIterations
from spotwise.core.worker.scheduling.iterations import Iterations
from spotwise.core.worker.scheduling.policies import scheduling_policy_of
from spotwise.core.worker.sequences.held_work import HeldWork
from spotwise.core.worker.sequences.moves import MoveSide
from spotwise.core.worker.sequences.prompt_side import PromptSide
from spotwise.core.worker.sequences.sequence import KvPlace, Sequence
from spotwise.core.worker.sequences.table import SequenceTable
from spotwise.core.worker.sequences.token_side import Arrivals, TokenSide

#: A sequence with its token phase here has not begun it yet, or has ended it.
_NOT_DECODING = (RequestState.WAITING_FOR_KV, RequestState.MIGRATING)
#: Schedulers whose last assignment number is echoed; earlier ones are gone.
SCHEDULERS_REMEMBERED = 8
#: Seconds that a draining worker stays at least, so that orders sent before its heartbeat still reach it.
DRAIN_LINGER_S = 1.0
#: Why a sequence is dropped at its client's deadline, in its ledger.
DEADLINE_CAME = "its deadline came"


class WorkerRole:
    """The worker's state machine: `handle(event, now) -> commands`; `address` is its KV listener, `host:port`.

    Raises:
        ValueError: the policy swaps without host blocks, or names an unknown scheduling policy.
    """

    def __init__(
        self,
        worker_id: str,
        incarnation: int,
        address: str,
        pool: BlockPool,
        policy: WorkerPolicy | None = None,
        host: BlockPool | None = None,
        numerics_class: str = "",
    ) -> None:
        self.worker_id = worker_id
        self._policy = policy = policy or WorkerPolicy()
        self._table = table = SequenceTable(worker_id, pool, host, incarnation, numerics_class)
        prefixes = PrefixCache(table, enabled=policy.prefix_caching)
        order = scheduling_policy_of(policy, table, prefixes)
        self._swaps = _swaps_of(policy, table, prefixes)
        self._allocator: KvAllocator = (
            PreemptiveKvAllocator(table, policy, prefixes, order, self._swaps)
            if policy.is_ranked
            else FcfsKvAllocator(table, policy, prefixes)
        )
        self._arrivals = Arrivals(table)
        self._token_side = TokenSide(table, self._allocator, self._arrivals, incarnation, address, policy.crossing)
        self._prompt_side = PromptSide(table, policy)
        self._prefixes = prefixes
        self._moves = MoveSide(table, self._prompt_side, self._allocator)
        iterations_of = Iterations if policy.counted_steps is None else CountedIterations
        self._iterations = iterations_of(table, order, self._allocator, self._prompt_side, self._moves, policy)
        self._confirmations = Confirmations(worker_id, policy.confirm_every_s)
        self._assignments_seen = LatestDict[str, int](SCHEDULERS_REMEMBERED)
        self._scheduler_terms = TermFence()
        self._drain: m.Drain | None = None
        self._drain_started_s = 0.0
        self._failure = ""
        self._lost: str | None = None  #: why the engine is not whole
        self._has_left = False
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            m.ReserveKv: self._reserve_kv,
            m.StartPrefill: self._start_prefill,
            m.CancelRequest: self._cancel,
            m.SurveyWorker: lambda order, now: self._moves.survey(order, self._iterations.step_s),
            m.MoveRequest: self._moves.move_request,
            m.GiveBackRequest: self._moves.give_back,
            m.KvReserved: self._moves.kv_reserved,
            m.KvRefused: self._moves.kv_refused,
            m.MoveAcknowledged: self._move_acknowledged,
            m.AttemptsConfirmed: self._attempts_confirmed,
            m.RenewLeases: self._token_side.renew_leases,
            m.ChangeHomePool: self._change_home_pool,
            m.ForgetGateway: self._forget_gateway,
            m.Drain: self._start_drain,
            m.Tick: self._tick,
            c.RecordLoaded: self._record_loaded,
            c.RecordUnavailable: self._record_unavailable,
            c.KvArrived: self._token_side.kv_arrived,
            h.PushCaughtUp: self._moves.copied,
            h.HandoffDelivered: self._handoff_delivered,
            h.HandoffFailed: self._handoff_failed,
            c.PushesMeasured: self._prompt_side.pushes_measured,
            c.EngineLost: self._engine_was_lost,
            c.EngineRestored: self._engine_restored,
            **self._iterations.handlers(),
        }
        if self._swaps is not None:
            self._handlers |= {c.Swapped: self._swap_ended, c.SwapFailed: self._swap_ended}

    @property
    def state(self) -> m.MemberState:
        """Whether it takes new requests."""
        if self._drain is not None:
            return m.MemberState.DRAINING
        return m.MemberState.READY if self._lost is None else m.MemberState.STARTING

    @property
    def leaves_at_s(self) -> float | None:
        """Unix time at which it leaves at the latest; `None` where it stays."""
        return None if self._drain is None else self._drain.deadline_s

    @property
    def is_empty(self) -> bool:
        """Whether it holds no sequence, not even one that has ended and whose blocks are in use."""
        return not len(self._table)

    @property
    def num_sequences(self) -> int:
        """Number of sequences that it holds, those that have ended and whose blocks are in use among them."""
        return len(self._table)

    @property
    def iterations(self) -> int:
        """Iterations that finished."""
        return self._iterations.finished

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """The sequences that it serves, in order of arrival; for planning a migration, not for change."""
        return tuple(sequence for sequence in self._table if not sequence.pending_free)

    def handle(self, event: c.WorkerEvent, now: float) -> list[c.WorkerCommand]:
        """Handle one event at Unix time `now` (seconds); return the commands that follow, in order."""
        self._handlers[type(event)](event, now)
        self._give_up_broken_engine(now)
        if self._lost is None:
            self._iterations.run_next(event, now)
        self._leave_if_done(now)
        return self._table.take_commands()

    def take_over(self, work: HeldWork) -> None:
        """Go on with work that was begun without this role, which has held nothing yet."""
        self._table.take_over(work.sequences, work.loading)
        self._prompt_side.pushes = work.pushes
        self._iterations.take_over(work.in_flight, work.budget)
        self._allocator.preemptions = work.preemptions
        for scheduler_id, assignment in work.assignments_seen.items():
            self._assignments_seen[scheduler_id] = assignment

    def held_work(self) -> HeldWork:
        """Return all that it holds, but for iterations in flight, for an engine that goes on without this role."""
        return HeldWork(
            [(sequence, len(sequence.block_ids)) for sequence in self._table],
            (),
            None,
            self._iterations.prefill_budget,
            self._prompt_side.pushes,
            dict(self._assignments_seen),
            self._allocator.preemptions,
        )

    def load(self) -> m.WorkerLoad:
        """Count what the worker holds now."""
        pool, host, swaps = self._table.pool, self._table.host, self._swaps
        states, device = self._table.states, KvPlace.DEVICE
        computing, pending = self._table.prompt_tokens_in_flight()
        remaining = decoding = in_place = to_hand_off = swapped = 0
        # One pass without properties: hundreds of sequences with every heartbeat.
        for sequence in self._table:
            if sequence.kv_place is not device:
                swapped += 1
            if sequence.target is None and not sequence.pending_free:  # `decodes_here`
                left = sequence.max_new_tokens_here - sequence.produced_here
                if left > 0:  # `remaining_tokens_here`
                    remaining += left
                if sequence.prompt_ordered_here and not sequence.produced_here:  # `in_prompt_phase`
                    in_place += 1
                elif sequence.state not in _NOT_DECODING:
                    decoding += 1
            elif sequence.target is not None:
                to_hand_off += 1
            is_decoding = sequence.known_tokens - sequence.computed_tokens == 1 and sequence.computed_tokens
            if not is_decoding and sequence.awaits_prefill:
                pending += sequence.uncomputed_tokens
        return m.WorkerLoad(
            pending_prompt_tokens=pending,
            computing_prompt_tokens=computing,
            remaining_tokens=remaining,
            kv_blocks_total=pool.num_blocks,
            kv_blocks_free=self._allocator.blocks_for_newcomers(),
            kv_blocks_kept=self._allocator.kept_blocks(),
            kv_blocks_used=pool.used_blocks,
            reserved_new_tokens=self._policy.reserved_new_tokens,
            kv_block_size=pool.block_size,
            waiting=states[RequestState.WAITING],
            waiting_for_kv=states[RequestState.WAITING_FOR_KV],
            running=states[RequestState.RUNNING],
            preempted=states[RequestState.PREEMPTED],
            migrating=states[RequestState.MIGRATING],
            decoding=decoding,
            prompts_in_place=in_place,
            prompts_to_hand_off=to_hand_off,
            swapped=swapped,
            kv_host_blocks_total=0 if host is None else host.num_blocks,
            kv_host_blocks_free=0 if host is None else host.free_blocks,
            preemptions=self._allocator.preemptions,
            kv_blocks_swapped_out=0 if swaps is None else swaps.swapped_out,
            kv_blocks_swapped_in=0 if swaps is None else swaps.swapped_in,
            prompt_token_s=self._iterations.prefill_budget.prompt_rate.token_s,
            assignments_seen=tuple(sorted(self._assignments_seen.items())),
            gateways=self._table.gateways,
            kv_push_token_s=self._prompt_side.pushes.rate.token_s,
            prompt_tokens_timed=self._iterations.prefill_budget.prompt_rate.tokens,
            kv_push_tokens_timed=self._prompt_side.pushes.rate.tokens,
            scheduler_term=self._scheduler_terms.latest,
        )

    def _reserve_kv(self, order: m.ReserveKv, now: float) -> None:
        if not order.source_id:
            self._assignments_seen[order.scheduler_id] = order.assignment
        self._token_side.reserve_kv(order, now, closed=self._over(order.term) or self._closed)

    def _start_prefill(self, order: m.StartPrefill, now: float) -> None:
        self._assignments_seen[order.scheduler_id] = order.assignment
        is_for_another = order.target.worker_id != self.worker_id
        if (over := self._over(order.term)) is not None and is_for_another:
            self._table.publish_failure(order.stream, 0, over, retryable=True)
            return
        if self._lost is not None and is_for_another:
            self._table.publish_failure(order.stream, 0, self._lost, retryable=True, suspects=(self.worker_id,))
            return
        self._prompt_side.start_prefill(order, now, closed=over or self._closed)

    def _over(self, term: int) -> str | None:
        """Return why a scheduler's order is refused, where a later term's was received."""
        return f"the scheduler's term {term} is over" if self._scheduler_terms.refuses(term) else None

    def _cancel(self, order: m.CancelRequest, now: float) -> None:
        if not self._scheduler_terms.refuses(order.term):
            self._fence(order.choice_id, order.epoch)

    def _forget_gateway(self, order: m.ForgetGateway, now: float) -> None:
        if not self._scheduler_terms.refuses(order.term):
            self._table.forget_gateway(order, now)

    @property
    def _closed(self) -> str | None:
        return "draining" if self._drain is not None else self._lost

    def _engine_was_lost(self, event: c.EngineLost, now: float) -> None:
        """Give all sequences back, and take none, until the engine is whole again."""
        self._lost = event.reason
        if event.is_stuck:
            self._iterations.give_back_computed(f"the engine is stuck with this request: {event.reason}", now)
        self._give_back_all(f"the worker lost a part of its engine: {event.reason}", now)
        self._iterations.drop_all(now)
        self._prefixes.forget()

    def _engine_restored(self, event: c.EngineRestored, now: float) -> None:
        self._lost = None
        self._token_side.shares = event.shares

    def _give_back_all(self, reason: str, now: float) -> None:
        for sequence in [s for s in self._table if not s.pending_free]:
            if sequence.may_be_elsewhere:
                self._moves.give_up(sequence)
            else:
                self._table.fail(sequence, reason, now, retryable=True)

    def _attempts_confirmed(self, answer: m.AttemptsConfirmed, now: float) -> None:
        for choice_id, epoch in answer.ended:
            self._fence(choice_id, epoch)

    def _fence(self, choice_id: str, epoch: int) -> None:
        self._table.fence(choice_id, epoch)
        self._arrivals.fence(choice_id, epoch)

    def _move_acknowledged(self, answer: m.MoveAcknowledged, now: float) -> None:
        self._arrivals.acknowledged(answer)
        self._moves.acknowledged(answer, now)

    def _handoff_delivered(self, event: h.HandoffDelivered, now: float) -> None:
        sequence = self._table.push_ended(event.choice_id, event.epoch)
        if sequence is not None:
            (self._prompt_side if sequence.move is None else self._moves).delivered(sequence, event, now)

    def _handoff_failed(self, event: h.HandoffFailed, now: float) -> None:
        sequence = self._table.push_ended(event.choice_id, event.epoch)
        if sequence is not None:
            (self._prompt_side if sequence.move is None else self._moves).failed(sequence, event.reason, now)

    def _swap_ended(self, event: c.Swapped | c.SwapFailed, now: float) -> None:
        assert self._swaps is not None  # it was ordered
        if isinstance(event, c.Swapped):
            self._swaps.swapped(event, now)
        else:
            self._swaps.swap_failed(event, now)
        self._moves.swap_ended(event.sequence_id, now)

    def _confirm(self, now: float) -> None:
        held = ((s.stream, (s.choice_id, s.epoch), s.arrived_s) for s in self._table if not s.pending_free)
        for question in self._confirmations.messages(held, now):
            self._table.emit(question)

    def _change_home_pool(self, order: m.ChangeHomePool, now: float) -> None:
        """Take another home pool; only what the scheduler sends from now on differs."""
        if order.worker_id == self.worker_id and not self._scheduler_terms.refuses(order.term):
            self._table.emit(c.TakeHomePool(order.pool))

    def _record_loaded(self, event: c.RecordLoaded, now: float) -> None:
        sequence = self._table.load_answered(event.record.choice_id, event.record.epoch)
        if sequence is None:
            self._table.emit(c.DropSequence(event.record.sequence_id))  # the attempt ended in the meantime
            return
        sequence.load(event.record)
        if sequence.is_overdue(now):
            self._end_overdue(sequence, now)
        else:
            self._token_side.pass_tokens(sequence, now)

    def _end_overdue(self, sequence: Sequence, now: float) -> None:
        """Drop a sequence at its deadline, as if its gateway had cancelled it: that one ends the request by itself."""
        self._table.record(sequence, "failed", now, reason=DEADLINE_CAME, tokens=sequence.output_tokens)
        self._fence(sequence.choice_id, sequence.epoch)

    def _record_unavailable(self, event: c.RecordUnavailable, now: float) -> None:
        sequence = self._table.load_answered(event.choice_id, event.epoch)
        if sequence is not None:
            self._table.fail(sequence, event.reason, now, retryable=event.retryable)

    def _tick(self, event: m.Tick, now: float) -> None:
        if event.away_s:
            for side in (self._token_side, self._moves, self._arrivals):
                side.was_away(event.away_s)
        for sequence in [each for each in self._table if each.is_overdue(now) and not each.pending_free]:
            self._end_overdue(sequence, now)
        self._token_side.expire_leases(now)
        self._moves.tick(now)
        self._arrivals.tick(now)
        self._prompt_side.renew_leases(now)
        if self._confirmations.is_due(now):
            self._confirm(now)
        if self._drain is not None and now >= self._drain.deadline_s:
            self._give_back_all("the worker had to leave", now)

    def _start_drain(self, order: m.Drain, now: float) -> None:
        if order.worker_id != self.worker_id or self._moves.refuses(order.term):
            return
        if self._drain is None:
            self._drain, self._drain_started_s = order, now
            return
        first = order if order.deadline_s < self._drain.deadline_s else self._drain
        self._drain = replace(first, devices_stay=order.devices_stay and self._drain.devices_stay)

    def _give_up_broken_engine(self, now: float) -> None:
        reason = self._iterations.broken
        if reason is None or self._drain is not None:
            return
        self._failure = reason
        self._drain, self._drain_started_s = m.Drain(self.worker_id, now, reason), now

    def _leave_if_done(self, now: float) -> None:
        if self._drain is None or self._has_left or len(self._table):
            return
        if self._arrivals and now < self._drain.deadline_s:
            return
        if now >= min(self._drain_started_s + DRAIN_LINGER_S, self._drain.deadline_s):
            self._has_left = True
            self._table.emit(c.Leave(self._failure, self._drain.devices_stay))


def _swaps_of(policy: WorkerPolicy, table: SequenceTable, prefixes: PrefixCache) -> Swaps | None:
    if not policy.swap.when_full.swaps:
        return None
    if table.host is None:
        raise ValueError(f"when_full={policy.swap.when_full.value} needs blocks of the host's memory")
    return Swaps(table, table.host, prefixes)
