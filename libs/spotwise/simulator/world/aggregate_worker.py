"""A machine's worker while memory is ample: its decodes are counted in groups and not one by one (iteration-level scheduling:
Orca, section 4.1; whole prompts, first come, first served: Splitwise, section 4.3).

As long as every sequence finds a row and blocks, it does what `SteppedWorker` does, at the same times to the last bit.
Before an event that needs a decision about rows or blocks it continues stepwise, with the same sequences.
A decode costs work when it joins and when it ends; an iteration costs the same for any batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from spotwise.core.costs.cost_model import BatchShape, pairs, prices_decodes
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import KvHandoff, KvTarget
from spotwise.core.requests.request import FinishReason
from spotwise.core.worker import commands as c
from spotwise.core.worker.kv.push_policy import ConfiguredPushMode, PushPolicy
from spotwise.core.worker.policy import Batching
from spotwise.core.worker.scheduling.chunked_prefill import ChunkedPrefillBudget
from spotwise.core.worker.sequences.held_work import HeldWork
from spotwise.simulator.world.held_requests import AggregateWork, CountedDecodes, HeldCounts, HeldRequest, HeldStage
from spotwise.simulator.world.iteration_run import IterationRun
from spotwise.simulator.world.machine_worker import Site, WorkerTotals
from spotwise.simulator.world.orders import IterationOrder
from spotwise.simulator.world.token_times import TOKEN_ID


def can_aggregate(site: Site) -> bool:
    """Tell whether a machine may count its decodes in groups."""
    policy, settings = site.policy, site.around.settings
    return (
        settings.aggregates
        and not settings.elastic
        and not policy.prefix_caching
        and policy.counted_steps is not None
        and policy.batching is Batching.ITERATION_LEVEL
        and policy.limits.max_num_batched_tokens is None
        and policy.max_stall_s is None
        and policy.kv_push is ConfiguredPushMode.SERIAL
        and prices_decodes(site.machine_type.cost)
    )


class AggregateWorker:
    """A worker without a role of its own; `site.host.go_stepwise` replaces it where a decision is to be made."""

    def __init__(self, site: Site) -> None:
        cost = site.machine_type.cost
        assert prices_decodes(cost)
        self.state = m.MemberState.READY
        self._site = site
        self._around = around = site.around
        self._queue = around.queue
        self._policy = policy = site.policy
        self._size = around.settings.kv_block_size
        self._blocks = site.kv_blocks
        self._watermark = policy.watermark_blocks(self._blocks)
        self._decodes_pause = policy.limits.decodes_pause
        self._reserved_new_tokens = policy.reserved_new_tokens
        self._max_rows, self._max_prompt_tokens = policy.limits.max_num_seqs, policy.limits.max_prompt_tokens
        self._budget = ChunkedPrefillBudget(None, policy.context_parity, policy.cost)
        self._pushes = PushPolicy(policy.kv_push)
        self._seen: tuple[tuple[str, int], ...] = ()  #: by scheduler, as heartbeats have it
        self._held: dict[str, HeldRequest] = {}  #: by choice, in order of arrival
        self._arrived = 0
        self._prompts: deque[HeldRequest] = deque()  #: loaded ones that wait, in order of arrival
        self._group = CountedDecodes(self._size if policy.grows else 0)
        self._counts = HeldCounts()
        self._used = self._peak = 0
        self._run = IterationRun(self._queue, cost, self._run_over)
        self._computed: list[HeldRequest] = []  #: prompts in the running iteration
        self._newest_decode = -1  #: the highest number of any so far
        self._fresh: list[HeldRequest] = []  #: decodes that have had no token in an iteration of theirs
        self._last_token_s = 0.0  #: of the decodes in the last iteration
        self._is_noted = False  #: the budget knows of the running iteration
        self._preemptions = 0
        self._handlers: dict[type, Callable[[Any], None]] = {
            m.ReserveKv: self._reserve_kv,
            m.StartPrefill: self._start_prefill,
            m.CancelRequest: self._cancel,
            m.ChangeHomePool: lambda order: site.host.take_home_pool(order.pool),
            m.Tick: lambda tick: None,
            c.KvArrived: self._kv_arrived,
            h.HandoffDelivered: self._delivered,
        }

    @property
    def is_running(self) -> bool:
        """Whether an iteration runs."""
        return self._run.steps > 0

    @property
    def waits(self) -> bool:
        """Never: what waits for a decision is stepped."""
        return False

    @property
    def boundary_s(self) -> float:
        """End of the running iteration; now, where none runs."""
        return self._run.boundary_s

    @property
    def free_blocks(self) -> int:
        """Blocks of the device without an owner."""
        return self._blocks - self._used

    @property
    def held_blocks(self) -> int:
        """Blocks with an owner."""
        return self._used

    @property
    def _kept_blocks(self) -> int:
        """Free blocks kept from newcomers."""
        return self._counts.entry_blocks + (self._watermark if self._used else 0)

    def totals(self) -> WorkerTotals:
        """Return its totals."""
        return WorkerTotals(self._preemptions, self._peak * self._size)

    def handle(self, event: Any) -> None:
        """Handle an event, here or stepwise."""
        handler = self._handlers.get(type(event))
        if handler is None:
            self._go_stepwise(event)
        else:
            handler(event)

    def load(self) -> m.WorkerLoad:
        """Count what it holds."""
        decodes, counts = self._group.size, self._counts
        return m.WorkerLoad(
            pending_prompt_tokens=counts.pending_prompt_tokens,
            computing_prompt_tokens=sum([held.prompt_tokens for held in self._computed]),
            remaining_tokens=counts.remaining_tokens,
            kv_blocks_total=self._blocks,
            kv_blocks_free=self._blocks - self._used,
            kv_blocks_kept=self._kept_blocks,
            kv_blocks_used=self._used,
            reserved_new_tokens=self._reserved_new_tokens,
            kv_block_size=self._size,
            waiting=counts.waiting,
            waiting_for_kv=counts.waiting_for_kv,
            running=decodes + len(self._computed),
            migrating=counts.migrating,
            decoding=decodes,
            prompts_in_place=counts.prompts_in_place,
            prompts_to_hand_off=counts.prompts_to_hand_off,
            prompt_token_s=self._budget.prompt_rate.token_s,
            assignments_seen=self._seen,
            preemptions=self._preemptions,
            kv_push_token_s=self._pushes.rate.token_s,
            prompt_tokens_timed=self._budget.prompt_rate.tokens,
            kv_push_tokens_timed=self._pushes.rate.tokens,
        )

    def settle(self) -> None:
        """Count the iterations that have ended."""
        run = self._run
        began_s, ends_s = run.began_s, run.take_ended()
        if not ends_s:
            return
        observer, ended, rows = self._around.observer, len(ends_s), run.rows
        if rows:
            if self._fresh:
                self._first_tokens(ends_s[0])
            else:
                observer.tokens_spaced((ends_s[0] - self._last_token_s,), rows)
            if ended > 1:
                observer.tokens_spaced([later_s - end_s for end_s, later_s in pairwise(ends_s)], rows)
            self._last_token_s = ends_s[-1]
        observer.iterations_ended(self._site.machine_id, run.shape, ends_s[-1] - began_s, ended)
        self._counts.remaining_tokens -= ended * rows
        self._used += self._group.pass_iterations(ended, begins_another=run.steps > 0)
        if not run.steps:
            self._end_run()

    def _first_tokens(self, end_s: float) -> None:
        """Report the gaps of an iteration that some decodes have joined."""
        if others := self._run.rows - len(self._fresh):
            self._around.observer.tokens_spaced((end_s - self._last_token_s,), others)
        gaps_s = [end_s - held.progress.last_token_s for held in self._fresh if held.progress is not None]
        self._around.observer.tokens_spaced(gaps_s)
        self._fresh = []

    def _run_over(self) -> None:
        had_prompts = bool(self._computed)
        self.settle()
        self._site.host.order_ended(has_news=had_prompts)

    def _changed(self) -> None:
        """Begin, or have the running iteration followed by another batch, once a sequence became runnable."""
        if self._run.steps:
            self._run.cut()
        else:
            self._begin()

    def _begin(self) -> None:
        """Begin the next iterations, where something can run."""
        group, prompts = self._group, self._prompts
        rows = group.size
        if not rows and not prompts:
            return
        growth = group.growth()
        free_blocks = self._blocks - self._used
        taken, tokens, entering = 0, 0, 0
        for held in prompts:
            if tokens and tokens + held.prompt_tokens > self._max_prompt_tokens:
                break
            if not self._policy.grows and entering + held.blocks > free_blocks:
                break  # it waits, and all behind it: no sequence is preempted
            if rows + taken >= self._max_rows and held.number > self._newest_decode:
                break  # the same, behind all that have rows
            taken += 1
            tokens += held.prompt_tokens
            entering += held.blocks
        if not rows and not taken:
            return
        needed = growth + entering
        if taken and self._policy.grows:
            needed += rows + 2 * self._watermark
        room = max(0, self._max_prompt_tokens - tokens) if self._decodes_pause and taken else rows
        if needed > free_blocks or 0 < room < rows or rows + taken > self._max_rows:
            self._go_stepwise(m.Tick())
            return
        rows = min(rows, room)
        self._used += growth + entering
        self._fresh += group.begin(pauses=not rows)
        if self._used > self._peak:
            self._peak = self._used
        if taken:
            self._begin_with_prompts(taken, tokens, rows)
        else:
            shape = BatchShape(0, 0.0, rows, group.context)
            self._run.begin_decodes(shape, group.steps_within(self._blocks - self._used))

    def _begin_with_prompts(self, taken: int, tokens: int, rows: int) -> None:
        now, prompt_context = self._queue.now, 0.0
        for _ in range(taken):
            held = self._prompts.popleft()
            self._enter(held, HeldStage.COMPUTED)
            held.started_s = now
            self._computed.append(held)
            prompt_context += pairs(0, held.prompt_tokens)
        shape = BatchShape(tokens, prompt_context, rows, self._group.context if rows else 0)
        self._budget.ordered(shape, now)
        self._is_noted = True
        end_s = self._run.begin_with_prompts(shape)
        for held in self._computed:
            if held.target is not None:
                self._site.hand_offs.part_started(held.row(), end_s - now)

    def _end_run(self) -> None:
        """Let the last iteration's sequences end or go on, in order of arrival, and begin the next one."""
        over = self._group.take_finished()
        if self._is_noted:
            self._is_noted = False
            self._budget.ended(self._queue.now)
        if self._computed:
            over = sorted(over + self._computed, key=_number) if over else self._computed
            self._computed = []
        if over:
            deltas = tuple([self._made(held) for held in over])
            self._around.control.send(over[0].stream.gateway_id, m.TokenBatch(self._site.machine_id, deltas))
            for held in over:
                if held.stage is HeldStage.COMPUTED and held.output_tokens > 1:
                    self._prompt_computed(held)
                else:
                    self._finish(held)
        self._begin()

    def _made(self, held: HeldRequest) -> m.TokenDelta:
        """Count a first token, or all to the last, and return what the client is told."""
        assert held.progress is not None
        first = held.stage is HeldStage.COMPUTED
        held.progress.output_tokens = tokens = 1 if first else held.output_tokens
        held.progress.last_token_s = self._queue.now
        is_last = tokens == held.output_tokens
        finish_reason = FinishReason.LENGTH if is_last else None
        return m.TokenDelta(held.stream.attempt_id, tokens - (not is_last), None, finish_reason)

    def _prompt_computed(self, held: HeldRequest) -> None:
        if held.target is None:
            held.known_tokens, held.made_before, held.may_make = held.prompt_tokens + 1, 1, held.new_tokens
            self._decode(held)
            return
        self._enter(held, HeldStage.LEAVING)
        handoff = KvHandoff(held.choice_id, held.epoch, held.prompt_tokens, TOKEN_ID)
        self._site.hand_offs.push(c.PushKv(handoff, held.target, ()))

    def _finish(self, held: HeldRequest) -> None:
        """End a request that has all its tokens; the reservation of one whose first token is the last is cancelled."""
        if held.target is not None:
            self._around.control.send(held.target.worker_id, m.CancelRequest(held.choice_id, held.epoch))
        self._release(held)

    def _decode(self, held: HeldRequest) -> None:
        self._enter(held, HeldStage.DECODING)
        self._join(held, runs=self._run.steps > 0)

    def _join(self, held: HeldRequest, *, runs: bool) -> None:
        self._group.join(held, runs=runs)
        self._newest_decode = max(self._newest_decode, held.number)

    def _enter(self, held: HeldRequest, stage: HeldStage) -> None:
        self._counts.remove(held)
        held.stage = stage
        self._counts.add(held)

    def _release(self, held: HeldRequest) -> None:
        decodes = held.stage is HeldStage.DECODING
        self._counts.remove(held, self._group.made_by(held) if decodes else 0)
        self._used -= self._group.blocks_of(held) if decodes else held.blocks
        del self._held[held.choice_id]
        self._site.host.sequence_left()
        if held.target is not None:
            self._site.hand_offs.drop(held.sequence_id)

    def _reserve_kv(self, order: m.ReserveKv) -> None:
        if (
            order.choice_id in self._held
            or order.source_id
            or order.term
            or order.kv_tokens > self._blocks * self._size
        ):
            self._go_stepwise(order)
            return
        self._saw(order)
        blocks = -(-self._policy.reservation_tokens(order.kv_tokens, order.max_new_tokens) // self._size)
        if blocks + self._kept_blocks > self.free_blocks:
            reason = f"{blocks} blocks needed, {self.free_blocks} free"
            refusal = m.KvRefused(order.choice_id, order.epoch, order.assignment, self._site.machine_id, reason)
            self._around.control.send(order.scheduler_id, refusal)
            return
        self._used += blocks
        held = self._hold(order, HeldStage.RESERVED, 0, order.kv_tokens, None)
        held.blocks = blocks
        self._counts.add(held)
        target = KvTarget(self._site.machine_id, 1, self._site.machine_id, ())
        answer = m.KvReserved(order.choice_id, order.epoch, order.assignment, target)
        self._around.control.send(order.scheduler_id, answer)
        steps = self._run.steps
        if steps > 1 and self._blocks - self._used < self._group.size * (steps // max(self._size, 1) + 1):
            self._run.cut()  # the next run is planned within the blocks that are left
        self._load_record(held)

    def _start_prefill(self, order: m.StartPrefill) -> None:
        is_here = order.target.worker_id == self._site.machine_id
        most = order.prompt_tokens + (order.max_new_tokens if is_here else 0)
        if order.choice_id in self._held or order.term or most > self._blocks * self._size:
            self._go_stepwise(order)
            return
        self._saw(order)
        held = self._hold(order, HeldStage.WAITING, order.prompt_tokens, 0, None if is_here else order.target)
        held.blocks = self.entry_blocks(held)
        self._counts.add(held)
        if is_here:
            answer = m.PrefillAccepted(order.choice_id, order.epoch, order.assignment, self._site.machine_id)
            self._around.control.send(order.scheduler_id, answer)
        self._load_record(held)

    def _saw(self, order: m.ReserveKv | m.StartPrefill) -> None:
        seen = order.scheduler_id, order.assignment
        others = [each for each in self._seen if each[0] != order.scheduler_id]
        self._seen = tuple(sorted([*others, seen])) if others else (seen,)

    def entry_blocks(self, held: HeldRequest) -> int:
        """Return the blocks that a waiting prompt needs."""
        ever = held.target is None and not self._policy.grows
        return -(-(held.prompt_tokens + (held.new_tokens if ever else 0)) // self._size)

    def grown_blocks(self, blocks: int, known_tokens: int) -> int:
        """Return how many blocks a decode with so many tokens has; those that it has where it never grows."""
        return -(-known_tokens // self._size) if self._policy.grows else blocks

    def _hold(
        self,
        order: m.ReserveKv | m.StartPrefill,
        stage: HeldStage,
        prompt_tokens: int,
        kv_tokens: int,
        target: KvTarget | None,
    ) -> HeldRequest:
        held = HeldRequest(
            order.choice_id,
            order.epoch,
            order.stream,
            order.scheduler_id,
            self._arrived,
            self._queue.now,
            stage,
            prompt_tokens,
            order.max_new_tokens,
            kv_tokens,
            order.lease_s,
            target,
            0,
        )
        self._arrived += 1
        self._held[order.choice_id] = held
        return held

    def _load_record(self, held: HeldRequest) -> None:
        record = self._around.store.record(held.choice_id, held.epoch)
        if record is None:
            self._go_stepwise(
                c.RecordUnavailable(held.choice_id, held.epoch, "the request was closed", retryable=False)
            )
            return
        held.record, held.progress = record, self._around.store.progress(held.choice_id)
        if record.output_token_ids:
            self._go_stepwise(c.RecordLoaded(record))
            return
        held.is_loaded = True
        if held.stage is HeldStage.WAITING:
            self._prompts.append(held)
            self._changed()

    def _kv_arrived(self, event: c.KvArrived) -> None:
        held, handoff = self._held.get(event.handoff.choice_id), event.handoff
        if held is None or held.stage is not HeldStage.RESERVED:
            return  # it ended while its last bytes were on the way
        if not held.is_loaded or handoff.later_token_ids:
            self._go_stepwise(event)
            return
        held.prompt_tokens, held.known_tokens = handoff.num_tokens, handoff.num_tokens + 1
        held.may_make, held.was_handed = held.kv_tokens - held.known_tokens, True
        held.started_s = self._queue.now
        self._decode(held)
        self._changed()

    def _delivered(self, event: h.HandoffDelivered) -> None:
        held = self._held[event.choice_id]
        self._pushes.delivered(held.prompt_tokens, event.kv_bytes, event.visible_s)
        self._release(held)
        self._freed()

    def _cancel(self, order: m.CancelRequest) -> None:
        held = self._held.get(order.choice_id)
        if held is None:
            return
        if held.stage is not HeldStage.RESERVED or order.term:
            self._go_stepwise(order)
            return
        self._release(held)
        self._freed()

    def _freed(self) -> None:
        """Let prompts that wait for blocks find those that came free."""
        if self._prompts:
            self._changed()

    def _go_stepwise(self, event: Any) -> None:
        self._site.host.go_stepwise(event)
        self._run.stop()

    def work(self) -> AggregateWork:
        """Return all that it holds, for a role that goes on with it."""
        return AggregateWork(
            self._site,
            [*self._held.values()],
            self._group,
            self._run.began_s if self._run.steps else None,
            self._run.rows > 0,
            self._is_noted,
            self._last_token_s,
            self._used,
            self._peak,
            HeldWork((), (), None, self._budget, self._pushes, dict(self._seen), self._preemptions),
        )

    def go_on_with(
        self, held: Sequence[HeldRequest], learned: HeldWork, order: IterationOrder, used_blocks: int, peak_blocks: int
    ) -> None:
        """Go on with a role's requests, in order of arrival, and with what it has learned, from an order that begins now."""
        self._budget, self._pushes = learned.budget, learned.pushes
        self._seen, self._preemptions = tuple(sorted(learned.assignments_seen.items())), learned.preemptions
        self._used, self._peak = used_blocks, peak_blocks
        self._last_token_s = self._queue.now
        self._is_noted = True
        for request in held:
            request.number, self._arrived = self._arrived, self._arrived + 1
            self._held[request.choice_id] = request
            self._counts.add(request)
        self._computed = [request for request in held if request.stage is HeldStage.COMPUTED]
        self._prompts.extend(request for request in held if request.stage is HeldStage.WAITING and request.is_loaded)
        decodes = [request for request in held if request.stage is HeldStage.DECODING]
        running = [request for request in decodes if request.has_joined]
        joining = [request for request in decodes if not request.has_joined]
        for request in running:
            self._join(request, runs=False)
        self._fresh = self._group.begin()
        self._run.begin_until(order.shape, order.next_end_s)
        for request in joining:
            self._join(request, runs=True)


def _number(held: HeldRequest) -> int:
    return held.number
