"""Members of the mesh and their heartbeats: each is a member's own count, all that a restarted scheduler needs."""

from __future__ import annotations

from enum import StrEnum

from spotwise.core.messages.numerics import Numerics
from spotwise.core.values import value

#: Seconds at least between two heartbeats of a member. A worker sends an extra one when it has computed prompts, since an empty
#: prompt queue changes what the scheduler does: short beside a prompt, and at most about one message an iteration.
NEWS_INTERVAL_S = 0.02


class MemberKind(StrEnum):
    """The six services, and the processes that compute for workers which are groups."""

    GATEWAY = "gateway"
    CLUSTER_SCHEDULER = "cluster_scheduler"
    PROMPT_WORKER = "prompt_worker"
    TOKEN_WORKER = "token_worker"
    MIGRATION_PLANNER = "migration_planner"
    SPOT_WATCHER = "spot_watcher"
    DEVICE = "device"  #: a process that computes a part of a model for a worker, its leader


class Pool(StrEnum):
    """The phases that a worker computes (Splitwise, section 4.1)."""

    PROMPT = "prompt"
    TOKEN = "token"
    MIXED = "mixed"


class MemberState(StrEnum):
    """Whether a member takes new requests."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    LEFT = "left"
    LOST = "lost"  #: its process has ended without a drain, reports the watcher of its machine


@value
class GatewayStreams:
    """The number of the last `TokenBatch` that a worker sent to one incarnation of a gateway."""

    gateway_id: str
    incarnation: int
    batches_sent: int


@value
class WorkerLoad:
    """A worker's count of what it holds, at the moment of a heartbeat.

    Attributes:
        pending_prompt_tokens: tokens of prompts and preempted sequences still to be computed, and those of ended sequences that
            an iteration computes all the same.
        computing_prompt_tokens: those of them in iterations that run: nothing that arrives comes before these.
        remaining_tokens: new tokens that sequences with their token phase here may still produce at most.
        kv_blocks_free: with swapping, blocks that it would free count as free.
        kv_blocks_kept: free ones that a new reservation must leave to waiting and growing sequences.
        reserved_new_tokens: new tokens that a reservation has blocks for at most; `None` for all.
        prompts_in_place: sequences still in their prompt phase whose token phase will be here, too.
        prompts_to_hand_off: sequences whose prompt is computed for another worker, until that one has the KV.
        swapped: sequences with KV in host memory, or on its way there or back.
        preemptions: recomputed sequences; like `kv_blocks_swapped_out` and `kv_blocks_swapped_in` since the start.
        refused_connections: at its KV port, since the start.
        prompt_token_s: seconds of a prompt token alone; `None` until measured or profiled. `prompt_tokens_timed`: up to how
            many tokens in one piece that is known; `None` for any.
        kv_push_token_s: seconds that a hand-off adds to a request per prompt token; `None` until measured.
            `kv_push_tokens_timed`: up to how many tokens that is known; `None` for any.
        assignments_seen: (scheduler id, last assignment number received) pairs.
        scheduler_term: the latest term of which a scheduler's order was received; 0 before one.
    """

    pending_prompt_tokens: int = 0
    computing_prompt_tokens: int = 0
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
    refused_connections: int = 0
    prompt_token_s: float | None = None
    kv_push_token_s: float | None = None
    prompt_tokens_timed: int | None = None
    kv_push_tokens_timed: int | None = None
    assignments_seen: tuple[tuple[str, int], ...] = ()
    gateways: tuple[GatewayStreams, ...] = ()
    scheduler_term: int = 0


@value
class QuarantinedPair:
    """A pair with `failures` failed hand-offs since the last success; tried again from Unix time `until_s` on."""

    prompt_worker: str
    token_worker: str
    failures: int
    until_s: float


@value
class DevicePlace:
    """What a process computes of a group's model: one position of P x M, its layers, and its KV heads.

    Attributes:
        epoch: number of the group.
        stages, shards: P and M; `stage` and `shard` are the position, from 0.
        layers, kv_heads: the first, and the one behind the last.
        exchange: what activations go through, for people.
    """

    epoch: int
    stages: int
    shards: int
    stage: int
    shard: int
    layers: tuple[int, int]
    kv_heads: tuple[int, int]
    exchange: str = ""


@value
class ProcessCores:
    """Where a worker's or device's process computes.

    Attributes:
        nodes: NUMA nodes of its CPUs, ascending.
        cpus: CPUs that it may use, as a list like `0-3,8`.
        threads: compute threads; `None`: as many as the library chooses.
        is_pinned: each of them keeps to a CPU of its own.
    """

    nodes: tuple[int, ...]
    cpus: str
    threads: int | None = None
    is_pinned: bool = False


@value
class Member:
    """A process of the mesh: its heartbeat, and its entry in the registry.

    Attributes:
        incarnation: grows each time a member of this id starts.
        grpc_address: `host:port` of health and engine control; `transfer_address`: where a worker takes KV, or a device
            gives weights.
        pool: a worker's home pool, which `ChangeHomePool` may change.
        model_digest: digest of a worker's loaded weights, or of the weights that a scheduler's mesh serves. `None`:
            without or unknown.
        quarantined: pairs of workers to which a scheduler gives no hand-offs for now.
        leaves_at_s: Unix time at which a draining worker or device leaves at the latest.
        leader_id: the worker for whose groups a device is.
        place: position of a device in a group, and of its leader; `None` while there is none.
        term: number of the term that a scheduler or planner holds; `None` for one that stands by, and all other members.
        trouble: why a worker that is a group computes nothing, for people; empty while nothing is wrong.
        open_requests: a gateway's requests that have not ended; a scheduler's that are accepted and not closed, some of
            them queued.
        cores: where a worker or device computes; `None` of all other members, and of simulated ones.
        numerics: how a worker or a device computes; `None` where it computes nothing, or does not know yet.
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
    leaves_at_s: float | None = None
    leader_id: str = ""
    place: DevicePlace | None = None
    term: int | None = None
    trouble: str = ""
    cores: ProcessCores | None = None
    numerics: Numerics | None = None

    @property
    def numerics_class(self) -> str:
        """The name of its numerics class; empty where it has none."""
        return "" if self.numerics is None else self.numerics.name
