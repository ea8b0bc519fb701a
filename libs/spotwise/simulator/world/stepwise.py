"""Hands a worker's sequences over from group counting to a role that handles each of them, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.messages.members import MemberState
from spotwise.core.requests.request import RequestState
from spotwise.core.worker.sequences.held_work import WorkInFlight
from spotwise.core.worker.sequences.sequence import Sequence
from spotwise.core.worker.sequences.token_side import FIRST_TERM
from spotwise.simulator.world.aggregate_worker import AggregateWorker
from spotwise.simulator.world.client import SimulationError
from spotwise.simulator.world.held_requests import AggregateWork, HeldRequest, HeldStage
from spotwise.simulator.world.machine_worker import Site
from spotwise.simulator.world.orders import IterationOrder
from spotwise.simulator.world.stepped_worker import SteppedWorker

_STATES = {
    HeldStage.RESERVED: RequestState.WAITING_FOR_KV,
    HeldStage.WAITING: RequestState.WAITING,
    HeldStage.COMPUTED: RequestState.RUNNING,
    HeldStage.LEAVING: RequestState.MIGRATING,
    HeldStage.DECODING: RequestState.RUNNING,
}
_STAGES = {
    RequestState.WAITING_FOR_KV: HeldStage.RESERVED,
    RequestState.WAITING: HeldStage.WAITING,
    RequestState.RUNNING: HeldStage.COMPUTED,
    RequestState.MIGRATING: HeldStage.LEAVING,
}
#: Free blocks at which decodes are counted in groups again: for each sequence, and as so many hundredths of all.
_BLOCKS_A_SEQUENCE, _HUNDREDTHS = 1, 2


def stepped(work: AggregateWork) -> SteppedWorker:
    """Return a worker with a role, which goes on with the work from the running iteration on.

    Raises:
        SimulationError: blocks are missing.
    """
    worker, store = SteppedWorker(work.site), work.site.around.store
    members, sequences = [], []
    for held in work.held:
        sequence, blocks = _sequence_of(held, work), work.blocks_of(held)
        sequences.append((sequence, blocks))
        if held.progress is not None:
            worker.token_times.enter(held.sequence_id, store.progress(held.choice_id))
        if work.runs(held):
            members.append((sequence, held.prompt_tokens if held.stage is HeldStage.COMPUTED else 1))
    if sum(blocks for _, blocks in sequences) != work.used_blocks:
        raise SimulationError(f"{work.site.machine_id} counts {work.used_blocks} blocks, and its requests have others")
    in_flight = order = None
    if work.began_s is not None:
        batch = Batch(tuple([BatchRow(s.sequence_id, s.computed_tokens, tokens, ()) for s, tokens in members]))
        in_flight = WorkInFlight(members, batch, work.began_s, work.is_noted)
        order = IterationOrder(batch, 1, work.site.machine_type.cost, work.began_s)
    loading = [held.sequence_id for held in work.held if not held.is_loaded]
    worker.role.take_over(replace(work.learned, sequences=sequences, loading=loading, in_flight=in_flight))
    worker.go_on_with(order, work.peak_blocks)
    return worker


def _sequence_of(held: HeldRequest, work: AggregateWork) -> Sequence:
    sequence = Sequence(held.choice_id, held.epoch, held.stream, _STATES[held.stage], held.arrived_s)
    sequence.scheduler_id, sequence.target = held.scheduler_id, held.target
    sequence.preemptions, sequence.lease_s, sequence.kv_tokens = held.preemptions, held.lease_s, held.kv_tokens
    if held.is_loaded:
        assert held.record is not None
        sequence.load(held.record)
    if held.stage is HeldStage.RESERVED:
        sequence.max_new_tokens_here = held.new_tokens
        sequence.lease_expires_s = held.arrived_s + FIRST_TERM * held.lease_s
        return sequence
    if not held.was_handed:
        sequence.prompt_ordered_here, sequence.known_tokens = True, held.prompt_tokens
        sequence.max_new_tokens_here = held.new_tokens if held.target is None else 0
    if held.stage is HeldStage.WAITING:
        return sequence
    sequence.started_s, sequence.prefilled_here = held.started_s, not held.was_handed
    if held.stage is HeldStage.DECODING:
        _goes_on(sequence, held, work)
    elif held.stage is HeldStage.LEAVING:
        sequence.computed_tokens, sequence.known_tokens = held.prompt_tokens, held.prompt_tokens + 1
        sequence.output_tokens = sequence.produced_here = 1
        sequence.push_in_flight = True
    return sequence


def _goes_on(sequence: Sequence, held: HeldRequest, work: AggregateWork) -> None:
    """Let a decode go on with the tokens that it has by now."""
    assert held.progress is not None
    made = work.group.made_by(held)
    sequence.known_tokens = work.group.known_tokens(held)
    sequence.computed_tokens = sequence.known_tokens - 1
    sequence.output_tokens = sequence.known_tokens - held.prompt_tokens
    sequence.produced_here, sequence.max_new_tokens_here = held.made_before + made, held.may_make
    held.progress.output_tokens = sequence.output_tokens
    if made:
        held.progress.last_token_s = work.last_token_s


def aggregated(worker: SteppedWorker, site: Site) -> AggregateWorker | None:
    """Return a worker that goes on in groups with a role's work, from an order that begins now; `None` where memory is not
    ample, or where a sequence is not counted in groups."""
    order, role, pool = worker.new_order, worker.role, worker.pool
    grows = site.policy.grows  # else prompts that find no blocks wait, and nothing is decided
    ample = _BLOCKS_A_SEQUENCE * role.num_sequences + _HUNDREDTHS * pool.num_blocks // 100 if grows else 0
    if order is None or pool.free_blocks < ample or role.state is not MemberState.READY:
        return None
    learned, held = role.held_work(), []
    gathered = AggregateWorker(site)
    for sequence, blocks in learned.sequences:
        request = _request_of(sequence, blocks, site, gathered)
        if request is None:
            return None
        held.append(request)
    if grows and pool.free_blocks < ample + sum(
        [request.blocks for request in held if request.stage is HeldStage.WAITING]
    ):
        return None
    gathered.go_on_with(held, learned, order, pool.used_blocks, worker.peak_blocks)
    worker.stop()
    return gathered


def _request_of(sequence: Sequence, blocks: int, site: Site, worker: AggregateWorker) -> HeldRequest | None:
    """Return a sequence as it is counted in groups; `None` where it is not."""
    store = site.around.store
    stage = _STAGES.get(sequence.state)
    if stage is HeldStage.COMPUTED and sequence.is_decoding:
        stage = HeldStage.DECODING
    record = store.record(sequence.choice_id, sequence.epoch)
    if stage is None or sequence.pending_free or sequence.move is not None or record is None or record.output_token_ids:
        return None
    request = HeldRequest(
        sequence.choice_id,
        sequence.epoch,
        sequence.stream,
        sequence.scheduler_id,
        0,
        sequence.arrived_s,
        stage,
        0 if stage is HeldStage.RESERVED else sequence.known_tokens - sequence.output_tokens,
        sequence.max_new_tokens_here,
        sequence.kv_tokens,
        sequence.lease_s,
        sequence.target,
        blocks,
        record,
        store.progress(sequence.choice_id),
        is_loaded=sequence.stop is not None,
        started_s=sequence.started_s or 0.0,
        preemptions=sequence.preemptions,
    )
    is_begun = sequence.computed_tokens or sequence.output_tokens
    match stage:
        case HeldStage.WAITING:
            request.blocks = worker.entry_blocks(request)
            return None if blocks or is_begun else request
        case HeldStage.COMPUTED:
            return None if is_begun or not sequence.in_iteration else request
        case HeldStage.DECODING:
            return request if _decodes_on(request, sequence, site.around.queue.now, worker.grown_blocks) else None
        case _:
            return request


def _decodes_on(request: HeldRequest, sequence: Sequence, now: float, grown_blocks: Callable[[int, int], int]) -> bool:
    """Enter a decode's tokens; tell whether they and its blocks are those of one that runs, or joins next."""
    assert request.progress is not None
    request.known_tokens, request.has_joined = sequence.known_tokens, sequence.in_iteration
    request.made_before, request.may_make = sequence.produced_here, sequence.max_new_tokens_here
    request.was_handed = not sequence.prompt_ordered_here
    if request.blocks != grown_blocks(request.blocks, request.known_tokens):
        return False
    if not request.made_before:
        return request.was_handed
    return request.has_joined and request.progress.last_token_s == now
