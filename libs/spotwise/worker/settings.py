"""Settings of a worker, in addition to every service's."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import LinearIterationCost, TableIterationCost
from spotwise.core.costs.cost_profile import BUILT_IN, CostProfile
from spotwise.core.kv.size import CPU_SHARE
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.membership.confirmation import CONFIRM_EVERY_S
from spotwise.core.messages.groups import GROUP_PATIENCE_S, GroupExchange
from spotwise.core.messages.members import Pool
from spotwise.core.worker.kv.push_policy import ConfiguredPushMode
from spotwise.core.worker.policy import Batching, Reserve, Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.policies import (
    SCHEDULING_POLICIES,
    described_policies,
    queues_for,
    served_policies,
)
from spotwise.files.cost_profile import read_cost_profile
from spotwise.mesh.security.link_security import NO_SECRET_TO_ENCRYPT_BY, LinkEncryption, LinkSecurity
from spotwise.mesh.service.settings import ModelServiceSettings
from spotwise.worker.compute_threads import ComputeThreads
from spotwise.worker.engine_choices import DEVICE, Dtype, KernelOrder, Weights
from spotwise.worker.topology import format_cpus, parse_cpus

#: Of a worker's iterations.
Cost = LinearIterationCost | TableIterationCost

#: Default share of the free memory for swapped KV: several workers share a machine.
_HOST_SHARE = 1 / 8


def _served_policy(name: str) -> str:
    served = served_policies()
    if name in served:
        return name
    choices = f"{', '.join(served[:-1])} and {served[-1]} serve"
    if name in SCHEDULING_POLICIES:
        raise ValueError(
            f"SPOTWISE_POLICY={name} needs the length of every answer, known only to spotwise simulate; {choices}"
        )
    raise ValueError(f"SPOTWISE_POLICY={name} is no scheduling policy; {choices}")


def _usable_cores(cores: str) -> str:
    usable = os.sched_getaffinity(0)
    if lacking := [core for core in parse_cpus(cores) if core not in usable]:
        raise ValueError(f"this process may use the cores {format_cpus(sorted(usable))}, not {format_cpus(lacking)}")
    return cores


class WorkerSettings(ModelServiceSettings):
    """One worker: its model, its memory, its place on the machine."""

    dtype: Dtype = "auto"
    weights: Weights = Field(
        "keep", description="keep: weights of a GGUF file stay quantised in memory; widen: they do not"
    )
    kernel_order: KernelOrder = Field(
        "auto", description="order in which the native kernels add bfloat16 products: dot, amx or auto (the mesh's)"
    )
    device: str = Field("auto", pattern=DEVICE)
    threads: int | None = Field(None, ge=1, description="compute threads; default: the library's choice")
    cores: Annotated[str, AfterValidator(_usable_cores)] = Field(
        "", description="CPU cores of the process, e.g. 0,1 or 0-15,32-47; unset: all that it may use"
    )
    pin_threads: bool = Field(
        False, description="each compute thread keeps to a core of its own, of as many of cores as there are threads"
    )
    niceness: int = Field(0, ge=0, le=19, description="niceness of the compute threads, as in nice(1)")
    decode_graphs: bool = Field(True, description="on a GPU: record decodes as CUDA graphs and replay them")
    shared_weights: Path | None = Field(
        None, description="folder where a machine's workers share packed weights; unset: each has a copy"
    )
    cost_profiles: Path | None = Field(
        None,
        description="folder where a machine's workers keep the measured costs of their iterations; unset: none is kept",
    )
    profile_seconds: float = Field(
        10.0, gt=0, description="approximate seconds for measuring the costs of iterations at a start"
    )
    profile_anew: bool = Field(False, description="measure the costs of iterations even if a profile is kept")
    iteration_timeout_s: float = Field(
        60.0,
        gt=0,
        description="minimum seconds of an iteration before its engine counts as stuck; at least twenty times the usual "
        "time, and ten times this setting before any was measured",
    )
    kv_cache_bytes: Annotated[int, Field(gt=0)] | Literal["auto"] = Field(
        "auto",
        description="bytes of KV memory; auto: nearly all of a GPU's free memory, or a quarter of the machine's, divided by "
        "local_workers, up to what max_num_seqs sequences of full context use",
    )
    local_workers: int = Field(
        1,
        ge=1,
        description="workers that divide the memory of this machine or its GPU, where kv_cache_bytes is auto",
    )
    kv_block_size: int = Field(16, ge=1)
    max_num_seqs: int = Field(256, ge=1)
    max_prompt_tokens: int = Field(
        2048,
        ge=1,
        description="maximum prompt tokens in an iteration; longer prompts are computed in parts",
    )
    max_num_batched_tokens: int | None = Field(
        None,
        ge=1,
        description="maximum tokens in an iteration, decodes included; unset: only max_stall_ms and max_prompt_tokens cut "
        "prompts",
    )
    decodes_pause: bool = Field(
        False,
        description="decodes pause while prompts fill max_prompt_tokens; requires max_stall_ms=0 and no "
        "max_num_batched_tokens",
    )
    reserve: Reserve = Field(
        Reserve.ON_DEMAND,
        description="when output tokens get blocks: on_demand (as they come, with preemption) or max_tokens (all at once)",
    )
    kv_watermark: float = Field(
        0.01, ge=0, lt=1, description="with on_demand: share of blocks that a new sequence leaves free while others run"
    )
    max_preemptions: int = Field(3, ge=1, description="preemptions after which a sequence keeps all its blocks")
    prompts_first: bool = Field(
        True,
        description="with on_demand: prompts that wait for KV blocks take them from decodes; false: first come, first "
        "served",
    )
    preempt_after_ms: float = Field(
        1000.0, ge=0, description="milliseconds that a prompt waits for KV blocks before it takes them"
    )
    prefix_caching: bool = Field(True, description="prompts reuse computed KV blocks of equal prefixes")
    batching: Batching = Field(
        Batching.ITERATION_LEVEL,
        description="iteration_level, or for comparisons request_level: a batch runs to its end; requires "
        "reserve=max_tokens",
    )
    max_stall_ms: float = Field(
        60.0,
        ge=0,
        description="approximate milliseconds that a part of a prompt may delay decodes or, without decodes and with at "
        "least 256 tokens, later requests; 0: no limit but max_prompt_tokens",
    )
    policy: Annotated[str, AfterValidator(_served_policy)] = Field(
        Scheduling.FCFS.value,
        description=f"scheduling policy: {described_policies()}",
    )
    starve_limit_ms: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="with mlfq: milliseconds of waiting after which a request is promoted; default: 1,500 times a single "
        "decode",
    )
    quantum_ratio: float = Field(
        2.0, gt=1, allow_inf_nan=False, description="with mlfq: quantum of each queue over that of the queue above"
    )
    profile: Path | None = Field(
        None,
        description="cost profile, a file of spotwise profile, for mlfq and simulated workers; unset: measured, or of a "
        "simulated worker built in",
    )
    when_full: WhenFull | None = Field(
        None,
        description="what happens when no KV block is free: recompute (the lowest-ranked sequence), defer (new sequences "
        "wait), reactive (swap the lowest-ranked sequence to the host) or proactive (swap ahead of need); "
        "default: proactive with mlfq, else recompute",
    )
    kv_host_bytes: int | None = Field(
        None,
        ge=0,
        description="bytes of host memory for swapped KV; 0: none; default: an eighth of the free memory at the start, "
        "divided by local_workers, and at least the KV cache",
    )
    spare_slots: int = Field(
        2, ge=0, description="with proactive: minimum number of new sequences for which blocks are kept free"
    )
    burst_queues: int = Field(
        2,
        ge=0,
        description="with proactive: number of uppermost queues; blocks are kept free for as many new sequences as they hold",
    )
    pool: Pool | None = Field(
        None, description="prompt, token or mixed; default: the pool that the service is named after"
    )
    transfer_port: int = Field(0, ge=0, le=65535, description="port of the KV listener; 0 takes a free one")
    link_encryption: LinkEncryption = Field(
        LinkEncryption.AUTO,
        description="encryption of KV, weights and activations on links: auto (between hosts, where the mesh has a secret), "
        "on or off",
    )
    push_timeout_s: float = Field(
        10.0, gt=0, description="seconds from the end of a prompt's computation after which its KV hand-off has failed"
    )
    stop_grace_s: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="maximum seconds in which a worker drains itself at SIGTERM or SIGINT; a second signal ends it; 0: none",
    )
    stages: int = Field(1, ge=1, description="P: pipeline stages; with P x M above 1 the worker leads a group")
    shards: int = Field(1, ge=1, description="M: shards of each stage; must divide the model's KV heads")
    reshapable: bool = Field(
        False,
        description="a re-shape may make the worker's process part of another group; always true with P x M above 1",
    )
    group_exchange: GroupExchange = Field(
        GroupExchange.AUTO,
        description="how a group's processes exchange activations: shared memory, tcp, or auto (shared memory on one "
        "machine); the leader's counts",
    )
    group_patience_s: float = Field(
        GROUP_PATIENCE_S,
        ge=0.2,
        description="seconds of silence after which a process of a group counts as lost; raise it on overloaded machines",
    )
    exchange_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="port where a process of a group accepts the others' connections; 0 takes a free one",
    )
    peer_weights: bool = Field(
        True,
        description="a process of a group fetches missing weights from others before it reads its model folder",
    )
    weights_port: int = Field(
        0, ge=0, le=65535, description="port where a process of a group serves weights to others; 0 takes a free one"
    )
    weight_buffer_bytes: int = Field(
        64 << 20,
        ge=1,
        description="maximum bytes of weights that a process has requested from others and not yet received",
    )
    storage_bytes_per_s: float | None = Field(
        None,
        gt=0,
        description="maximum bytes a second that a process of a group reads from its model folder; unset: no limit",
    )
    kv_push: ConfiguredPushMode = Field(
        ConfiguredPushMode.AUTO,
        description="when a prompt's KV is sent: serial (after its prefill), layerwise (during it), or auto (the cheaper)",
    )
    worker_metrics_port: int | None = Field(
        None, ge=0, le=65535, description="port of the worker's metrics; 0 takes a free one; unset: none"
    )

    @model_validator(mode="after")
    def _encryption_has_a_secret(self) -> Self:
        if self.link_encryption is LinkEncryption.ON and self.mesh_secret_file is None:
            raise ValueError(NO_SECRET_TO_ENCRYPT_BY)
        return self

    @model_validator(mode="after")
    def _threads_have_cores(self) -> Self:
        if self.pin_threads and (self.threads is None or self.threads > len(self.core_ids)):
            raise ValueError(
                f"SPOTWISE_PIN_THREADS: SPOTWISE_THREADS is {self.threads}, and SPOTWISE_CORES names {len(self.core_ids)} "
                "cores; set both, with as many cores as threads at least"
            )
        return self

    @model_validator(mode="after")
    def _serves_adapters(self) -> Self:
        if self.adapters and self.is_device:
            raise ValueError(
                "SPOTWISE_ADAPTERS: a worker of several processes, or one that a re-shape may change, serves no adapters; "
                "unset it, or serve with SPOTWISE_STAGES=1, SPOTWISE_SHARDS=1 and SPOTWISE_RESHAPABLE=false"
            )
        return self

    @model_validator(mode="after")
    def _policy_fits(self) -> Self:
        if self.kv_host_bytes == 0 and self._when_full.swaps:
            raise ValueError(
                f"SPOTWISE_WHEN_FULL={self._when_full} swaps KV to the host, and SPOTWISE_KV_HOST_BYTES=0 allows none"
            )
        if self.kv_host_bytes and not self._when_full.swaps:
            raise ValueError(
                f"SPOTWISE_KV_HOST_BYTES is {self.kv_host_bytes}, and nothing is swapped with "
                f"SPOTWISE_POLICY={self.policy} and SPOTWISE_WHEN_FULL={self._when_full}; reactive and proactive swap"
            )
        self.cost_profile()
        self.worker_policy(cost=BUILT_IN.iteration)
        return self

    @property
    def _when_full(self) -> WhenFull:
        if self.when_full is not None:
            return self.when_full
        has_host = self.kv_host_bytes != 0
        return WhenFull.PROACTIVE if self.policy == Scheduling.MLFQ and has_host else WhenFull.RECOMPUTE

    @property
    def swaps(self) -> bool:
        """Whether KV is swapped to host memory."""
        return self._when_full.swaps

    def host_bytes(self, free_bytes: int, kv_bytes: int) -> int:
        """Return the host memory for swapped KV where `free_bytes` are free and the cache has `kv_bytes`; 0 where none is
        swapped. Generous, since a sequence without host blocks is recomputed, and pages are committed only as they are written.
        """
        if not self.swaps:
            return 0
        if self.kv_host_bytes is None:
            return max(kv_bytes, round(_HOST_SHARE * free_bytes) // self.local_workers)
        return self.kv_host_bytes

    def offered_kv_bytes(self, free_bytes: int) -> int:
        """Return the KV memory that a device of groups offers, of `free_bytes`, before it has a part of a model."""
        if self.kv_cache_bytes == "auto":
            return max(1, int(CPU_SHARE * free_bytes) // self.local_workers)
        return self.kv_cache_bytes

    @property
    def member_metrics(self) -> tuple[int | None, str]:
        """The port of its metrics, and the setting's name."""
        return self.worker_metrics_port, "SPOTWISE_WORKER_METRICS_PORT"

    def cost_profile(self) -> CostProfile | None:
        """Return the configured cost profile, if any; raises `ValueError` where the file cannot be read, or is no profile."""
        if self.profile is None:
            return None
        try:
            return read_cost_profile(self.profile)
        except (OSError, ValueError) as error:
            raise ValueError(f"SPOTWISE_PROFILE: {self.profile} is no cost profile: {error}") from error

    def worker_policy(self, context_parity: float = math.inf, cost: Cost | None = None) -> WorkerPolicy:
        """Return how the worker batches and allocates memory; `context_parity` is the model's, `cost` that of its iterations
        (`None` only where the policy needs none). Raises `ValueError` where settings contradict one another.
        """
        limits = BatchLimits(
            self.max_num_seqs,
            self.max_prompt_tokens,
            self.max_num_batched_tokens,
            self.decodes_pause,
            cuts_prompts=True,
        )
        mlfq = None
        if self.policy == Scheduling.MLFQ and cost is not None:
            starve_limit_s = None if self.starve_limit_ms is None else self.starve_limit_ms / 1000
            mlfq = queues_for(cost, self.quantum_ratio, starve_limit_s)
        return WorkerPolicy(
            limits,
            self.reserve,
            self.kv_watermark,
            self.max_preemptions,
            self.prefix_caching,
            self.batching,
            self.max_stall_ms / 1000 or None,
            context_parity,
            prompts_first=self.prompts_first,
            preempt_after_s=self.preempt_after_ms / 1000,
            kv_push=self.kv_push,
            scheduling=self.policy,
            mlfq=mlfq,
            cost=None if mlfq is None else cost,
            swap=SwapPolicy(self._when_full, self.spare_slots, self.burst_queues),
            confirm_every_s=CONFIRM_EVERY_S,
            crossing=self.crossing,
        )

    def link_security(self) -> LinkSecurity:
        """Return what the process does about the security of its links; raises `MeshError` where the secret cannot be read."""
        return LinkSecurity(self.mesh_secret(), self.link_encryption)

    @property
    def group_size(self) -> int:
        """Processes that compute for this worker, itself included: P x M."""
        return self.stages * self.shards

    @property
    def is_device(self) -> bool:
        """Whether its process is a device, which leads the worker."""
        return self.group_size > 1 or self.reshapable

    @property
    def core_ids(self) -> tuple[int, ...]:
        """Cores to run on; empty: all."""
        return parse_cpus(self.cores)

    @property
    def compute_threads(self) -> ComputeThreads:
        """How the threads run that compute."""
        return ComputeThreads(self.niceness, self.core_ids[: self.threads] if self.pin_threads else ())
