"""A worker's state of one attempt at a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from spotwise.core.messages.worker import StreamRef
from spotwise.core.requests.record import KvTarget, QueueLevel, RequestRecord, sequence_id
from spotwise.core.requests.request import RequestEvent, RequestState, StopCriteria, advance
from spotwise.core.worker.scheduling.mlfq import QueueState
from spotwise.core.worker.sequences.move import MoveStep, SequenceMove

#: Most sequences are in the first: it is asked of hundreds of them before every iteration.
_COMPUTED_HERE: Final = (RequestState.RUNNING, RequestState.WAITING, RequestState.PREEMPTED)


class KvPlace(StrEnum):
    """Where a sequence's computed KV is."""

    DEVICE = "device"
    LEAVING = "leaving"  #: being swapped out; its device blocks are read
    HOST = "host"
    FETCHED = "fetched"  #: nothing computed; a cached prefix is being fetched into its device blocks
    RETURNING = "returning"  #: being swapped in; its device blocks are written, its host blocks read


@dataclass(slots=True)
class Sequence:
    """One attempt at a request on one worker; `stop`, `max_new_tokens`, `may_reuse`, `priority` and `tenant` are the record's.

    Attributes:
        known_tokens: prompt and output tokens whose ids exist; `computed_tokens` of those have their KV in `block_ids`.
        output_tokens: output tokens so far, earlier attempts included (`max_new_tokens` at most); counts from the record on.
        produced_here: output tokens sampled by this worker in this attempt.
        max_new_tokens_here: new tokens that this worker may sample at most, `produced_here` included.
        target: the reservation that its KV is handed off to; `None` where this worker decodes.
        lease_expires_s: when a reservation expires unless renewed; `None` for other sequences.
        stop: `None` until the engine knows the sequence.
        handed_token_ids: the attempt's tokens, sampled by other workers, until the engine knows them.
        deadline_unix_s: when its client gives up; `None` without a deadline, and until the engine knows the sequence.
        record_tokens: tokens of the record, which the attempt began with.
        move: its way to another worker.
        source_id, hop: the worker that it moved here from, and the number of that move; empty and 0 for one that began here.
        hops_asked: the last number that a target was asked under.
        announced: its gateway was told that it moved here.
        scheduler_id: id of the scheduler that ordered it.
        kv_tokens: tokens that it may hold at most, where another worker computed its first.
        pending_free: ended, and held only until nothing uses its blocks.
        push_in_flight: its blocks are read for a hand-off, or will be as they are written.
        in_iteration: an iteration in flight computes tokens of it.
        started_s: when its prefill, or the token phase of a handed-off sequence, started here.
        prompt_ordered_here: its prompt phase is this worker's; `prefilled_here`: it ran here.
        preemptions: times that it lost its blocks here.
        token_ids: all known tokens, from the record on, up to the first that was only counted.
        may_reuse: its prompt may begin with cached blocks; `prefix_salt`: of sequences with the same salt.
        cached_tokens: prompt tokens found in the cache, once the prompt has begun.
        block_hashes: hashes of its first full blocks, computed on demand.
        entered_blocks: first blocks that are in the prefix cache; `reused_blocks`: first blocks that came from it.
        queue_state: in the queues of a scheduling policy that has any; `arrived_level`: that on the prompt worker.
        swap_failed: a swap of it failed; it is not swapped again.
        has_run: an iteration computed tokens of it since it last got blocks.
        source_class: numerics class of all its tokens from other workers; empty where they are of several.
        has_foreign_kv: some of its KV came of another numerics class than this worker's, and all later KV depends on it.
    """

    choice_id: str
    epoch: int
    stream: StreamRef
    state: RequestState
    arrived_s: float
    known_tokens: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    max_new_tokens: int = 0
    produced_here: int = 0
    max_new_tokens_here: int = 0
    target: KvTarget | None = None
    lease_s: float = 0.0
    lease_expires_s: float | None = None
    stop: StopCriteria | None = None
    handed_token_ids: tuple[int, ...] = ()
    deadline_unix_s: float | None = None
    record_tokens: int = 0
    move: SequenceMove | None = None
    source_id: str = ""
    hop: int = 0
    hops_asked: int = 0
    announced: bool = False
    scheduler_id: str = ""
    kv_tokens: int = 0
    pending_free: bool = False
    push_in_flight: bool = False
    prompt_ordered_here: bool = False
    in_iteration: bool = False
    prefilled_here: bool = False
    started_s: float | None = None
    preemptions: int = 0
    model: str = ""
    prefix_salt: str = ""
    token_ids: list[int] = field(default_factory=list)
    may_reuse: bool = False
    cached_tokens: int = 0
    block_hashes: list[bytes] = field(default_factory=list)
    entered_blocks: int = 0
    reused_blocks: int = 0
    block_ids: tuple[int, ...] = ()
    priority: int = 0
    tenant: str = ""
    queue_state: QueueState | None = None
    arrived_level: QueueLevel | None = None
    kv_place: KvPlace = KvPlace.DEVICE
    host_block_ids: tuple[int, ...] = ()
    swap_failed: bool = False
    has_run: bool = False
    source_class: str = ""
    has_foreign_kv: bool = False
    sequence_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.sequence_id = sequence_id(self.choice_id, self.epoch)

    def is_overdue(self, now: float) -> bool:
        """Tell whether its client has given up."""
        return self.deadline_unix_s is not None and now >= self.deadline_unix_s

    @property
    def uncomputed_tokens(self) -> int:
        """Known tokens without KV: the prompt before its prefill, 1 between decodes."""
        return self.known_tokens - self.computed_tokens

    @property
    def remaining_tokens_here(self) -> int:
        """New tokens that this worker may still sample at most."""
        return max(0, self.max_new_tokens_here - self.produced_here)

    @property
    def remaining_tokens(self) -> int:
        """New tokens until it ends by length; needs the record."""
        return self.max_new_tokens - self.output_tokens

    @property
    def decodes_here(self) -> bool:
        """Whether this worker runs its token phase."""
        return self.target is None

    @property
    def in_prompt_phase(self) -> bool:
        """Whether its prompt is this worker's, and has produced no token yet."""
        return self.prompt_ordered_here and self.produced_here == 0

    @property
    def is_runnable(self) -> bool:
        """Whether it can take part in an iteration, memory permitting."""
        return (
            self.state in _COMPUTED_HERE
            and self.stop is not None
            and not self.pending_free
            and (self.move is None or self.move.step is not MoveStep.PARKING)
        )

    @property
    def is_preemptible(self) -> bool:
        """Whether it could be preempted and computed again here; not while its blocks are copied to another worker."""
        decodes = self.state is RequestState.RUNNING and self.decodes_here
        return decodes and not self.pending_free and not self.push_in_flight

    @property
    def reserved_at(self) -> str | None:
        """The worker that has those blocks, or was asked for them."""
        if self.move is not None:
            away = (MoveStep.RETURNING, MoveStep.ABORTING)
            return None if self.move.step in away else self.move.order.target_id
        return None if self.target is None else self.target.worker_id

    @property
    def is_delivered(self) -> bool:
        """Whether another worker has it, and only its gateway's word is missing."""
        return self.move is not None and self.move.step is MoveStep.DELIVERED

    @property
    def may_be_elsewhere(self) -> bool:
        """Whether another worker has it, or may have it by now."""
        return self.move is not None and self.move.step in (MoveStep.HANDING_OVER, MoveStep.DELIVERED)

    @property
    def holds_reservation(self) -> bool:
        """Whether blocks are reserved for it elsewhere, and certainly nothing more than that."""
        return self.move is None or self.move.step in (MoveStep.COPYING, MoveStep.PARKING)

    @property
    def attempt_token_ids(self) -> tuple[int, ...]:
        """The output tokens of this attempt so far."""
        return tuple(self.token_ids[self.record_tokens :])

    @property
    def is_swapping(self) -> bool:
        """Whether its KV is being swapped, so that blocks on both sides are in use."""
        return self.kv_place in (KvPlace.LEAVING, KvPlace.RETURNING, KvPlace.FETCHED)

    @property
    def waits_for_blocks(self) -> bool:
        """Whether it is to be computed here and owns no block."""
        return not self.block_ids and self.state in _COMPUTED_HERE and not self.pending_free

    @property
    def is_new_prompt(self) -> bool:
        """Whether it waits for its first blocks."""
        return not self.block_ids and self.state is RequestState.WAITING

    @property
    def is_decoding(self) -> bool:
        """Whether all its known tokens but the last have their KV."""
        return self.computed_tokens > 0 and self.known_tokens - self.computed_tokens == 1

    @property
    def awaits_prefill(self) -> bool:
        """Whether some of its prompt is still to be computed here."""
        return not self.pending_free and self.known_tokens > 0 and not self.is_decoding

    def count_tokens(self, tokens: int) -> None:
        """Count new tokens."""
        self.output_tokens += tokens
        self.produced_here += tokens
        self.known_tokens += tokens

    def advance(self, event: RequestEvent) -> None:
        """Move along the transition table."""
        self.state = advance(self.state, event)

    def load(self, record: RequestRecord) -> None:
        """Take over the record."""
        self.stop, self.model, self.prefix_salt = record.stop, record.model, record.prefix_salt
        self.priority, self.tenant = record.priority, record.tenant
        self.deadline_unix_s = record.deadline_unix_s
        self.max_new_tokens = record.stop.max_new_tokens
        self.token_ids = [*record.prompt_token_ids, *record.output_token_ids]
        self.record_tokens = len(self.token_ids)
        self.may_reuse = not record.sampling.reads_whole_prompt
        self.output_tokens += len(record.output_token_ids)
