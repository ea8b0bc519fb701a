"""Who is a member of the mesh, and how it is doing.

Law: a member says of itself what it is and what it holds, counted at the moment it says so; nobody keeps count for another.
That is a heartbeat on the bus and a registration in the store, and all that a restarted scheduler needs to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: Seconds between two heartbeats of a member at least. A worker beats besides its turn when it has computed prompts: who has an
#: empty prompt queue is what a scheduler wants to know soonest. Short beside a prompt, and still no more than a message or so
#: an iteration, from whoever computes prompts without a pause.
NEWS_INTERVAL_S = 0.02


class MemberKind(StrEnum):
    """The six services."""

    GATEWAY = "gateway"
    CLUSTER_SCHEDULER = "cluster_scheduler"
    PROMPT_WORKER = "prompt_worker"
    TOKEN_WORKER = "token_worker"
    MIGRATION_PLANNER = "migration_planner"
    SPOT_WATCHER = "spot_watcher"


class Pool(StrEnum):
    """Which phase a worker computes: the prompt, the tokens, or both (Splitwise, section 4.1)."""

    PROMPT = "prompt"
    TOKEN = "token"
    MIXED = "mixed"


class MemberState(StrEnum):
    """Whether a member takes work."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    LEFT = "left"
    LOST = "lost"  #: its process has ended without a word, says the watcher of its machine


@dataclass(frozen=True, slots=True)
class GatewayStreams:
    """What a worker has sent to one incarnation of a gateway.

    Attributes:
        batches_sent: the number of the last `TokenBatch`.
    """

    gateway_id: str
    incarnation: int
    batches_sent: int


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """A worker's own count of what it holds, derived at the moment it is sent.

    Attributes:
        pending_prompt_tokens: tokens of prompts, and of preempted sequences, that are not computed yet.
        remaining_tokens: new tokens that sequences whose token phase is here, or will be, may still produce at most.
        kv_blocks_total, kv_blocks_free: of `kv_block_size` tokens each; where KV is swapped those are free too that a newcomer
            would get by that.
        kv_blocks_used: that sequences own now.
        kv_blocks_kept: of the free ones, how many a new reservation must leave to those that wait or grow.
        reserved_new_tokens: of a request's new tokens, how many a reservation has blocks for at most; `None` for all.
        waiting, waiting_for_kv, running, preempted, migrating: sequences by state.
        decoding: sequences in their token phase.
        prompts_in_place: sequences whose prompt is still to be computed here, and whose token phase will be here too.
        prompts_to_hand_off: sequences whose prompt is computed here for another worker, until that one has the KV.
        swapped: sequences whose KV is in the host's memory, or on its way there or back.
        kv_host_blocks_total, kv_host_blocks_free: of the host's memory; none where nothing is swapped.
        preemptions: how many sequences lost their KV and were computed again, since the worker's start.
        kv_blocks_swapped_out, kv_blocks_swapped_in: how many were copied to the host and back since then.
        prompt_token_s: seconds that a prompt token takes here with nothing beside it; `None` until measured or profiled.
        kv_push_token_s: seconds that handing KV off adds to a request, a prompt token; `None` until it was measured.
        assignments_seen: (scheduler id, last assignment number received) pairs.
        gateways: to whom its tokens go, and how many batches of them were sent so far.
    """

    pending_prompt_tokens: int = 0
    remaining_tokens: int = 0
    kv_blocks_total: int = 0
    kv_blocks_free: int = 0
    kv_blocks_kept: int = 0
    kv_blocks_used: int = 0
    kv_block_size: int = 16
    reserved_new_tokens: int | None = None
    waiting: int = 0
    waiting_for_kv: int = 0
    running: int = 0
    preempted: int = 0
    migrating: int = 0
    decoding: int = 0
    prompts_in_place: int = 0
    prompts_to_hand_off: int = 0
    swapped: int = 0
    kv_host_blocks_total: int = 0
    kv_host_blocks_free: int = 0
    preemptions: int = 0
    kv_blocks_swapped_out: int = 0
    kv_blocks_swapped_in: int = 0
    prompt_token_s: float | None = None
    kv_push_token_s: float | None = None
    assignments_seen: tuple[tuple[str, int], ...] = ()
    gateways: tuple[GatewayStreams, ...] = ()


@dataclass(frozen=True, slots=True)
class QuarantinedPair:
    """A prompt worker and a token worker between which hand-offs fail, as a scheduler reports them.

    Attributes:
        failures: requests whose hand-off between the two failed, since one went well.
        until_s: Unix time from which the scheduler tries the pair again.
    """

    prompt_worker: str
    token_worker: str
    failures: int
    until_s: float


@dataclass(frozen=True, slots=True)
class Member:
    """Who a process is and how it is doing; sent as its heartbeat, kept in the registry.

    Attributes:
        incarnation: grows each time a member of this id starts.
        grpc_address: `host:port` of health and engine control.
        pool: of workers only: the home pool, which a scheduler's `ChangeHomePool` may change.
        transfer_address: a worker's KV listener.
        load: of workers only.
        model_digest: of a worker, the digest of the weights that it computes with, once they are loaded; of a scheduler, the
            one that its mesh serves. `None` where there are no weights, or it is not known yet.
        quarantined: of schedulers only: pairs of workers that get no hand-offs for a while.
        open_requests: of a gateway, requests that have not ended; of a scheduler, those accepted and not closed.
        queued_requests: of a scheduler only: those of them that wait for room.
    """

    id: str
    kind: MemberKind
    incarnation: int
    state: MemberState
    host: str
    pid: int
    grpc_address: str
    pool: Pool | None = None
    transfer_address: str = ""
    model: str = ""
    load: WorkerLoad | None = None
    model_digest: str | None = None
    quarantined: tuple[QuarantinedPair, ...] = ()
    open_requests: int | None = None
    queued_requests: int | None = None
