"""FastServe's and its baselines' models, machines and schedulers (sections 6.1 and 6.3), each scheduler a policy of the mesh's
`WorkerRole`. FCFS: iteration-level, all blocks reserved at admission (Orca). Request-level: FasterTransformer's batches,
which idle the other pipeline stages. The plain MLFQs differ in the queue that jobs join and in prompts longer than a
quantum.

Costs: OPT-13B on an A100 fitted to the artifact's profile; GPT-3 175B on two stages of eight A100 (half of the layers each) by
BLOOM-176B's measured times on eight A100 (Splitwise's published profile), equal in parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import PiecewiseLinear, TableIterationCost
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.worker.policy import Batching, Reserve, Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy
from spotwise.core.worker.scheduling.policies import queues_for
from spotwise.simulator.costs.hardware import BLOOM_176B, GIB, LanguageModel, MachineType
from spotwise.simulator.costs.machine_costs import A100, built_in_costs
from spotwise.simulator.world.settings import InterruptedPrompts

OPT_13B = LanguageModel("opt-13b", 26 * 10**9, layers=40, heads=40, kv_heads=40, head_size=128)
GPT3_175B = LanguageModel("gpt3-175b", 350 * 10**9, layers=96, heads=96, kv_heads=96, head_size=128)

#: Seconds of OPT-13B on one A100: prefill 18.1 ms + 0.102 ms a token + 7.1e-6 ms a token squared (two pairs of tokens each);
#: decode 19.9 ms + 0.0385 ms a sequence + 6.3e-4 ms a token of context.
_OPT_COST = TableIterationCost(
    prompt=PiecewiseLinear((0, 2048), (0.0181, 0.0181 + 2048 * 0.102e-3)),
    decode=PiecewiseLinear((0, 94), (0.0199, 0.0199 + 94 * 0.0385e-3)),
    prompt_context_s=14.2e-9,
    decode_context_s=6.3e-7,
)
#: Of PCIe 4 x16, each way; a GPU has one.
_PCIE_BYTES_PER_S = 25e9


@dataclass(frozen=True, slots=True)
class GpuEngine:
    """A model on its GPUs.

    Attributes:
        cost: seconds of an iteration through all stages.
        kv_tokens, host_tokens: KV capacity of the device and of the host.
        host_bytes_per_s: between them, each way, all GPUs together.
        batch: sequences of an iteration at most.
    """

    name: str
    model: LanguageModel
    cost: TableIterationCost
    stages: int
    kv_tokens: int
    host_tokens: int
    host_bytes_per_s: float
    batch: int

    @property
    def machine(self) -> MachineType:
        """The engine as a simulated machine."""
        token_bytes = self.model.kv_token_bytes
        memory_bytes = self.model.weight_bytes + self.kv_tokens * token_bytes
        host_bytes = self.host_tokens * token_bytes
        return MachineType(self.name, self.cost, memory_bytes, 25e9, host_bytes, self.host_bytes_per_s)


#: KV takes 90 % of 16 A100 with 40 GB less the weights, 226 GB: 23 jobs of 2,048 tokens, of which two batches of 8 are in
#: flight; and half of two hosts with 1,152 GB each.
GPT3_ON_16 = GpuEngine(
    "GPT-3 175B on 2 x 8 A100-40GB",
    GPT3_175B,
    built_in_costs(BLOOM_176B)[A100],
    stages=2,
    kv_tokens=47_900,
    host_tokens=244_000,
    host_bytes_per_s=16 * _PCIE_BYTES_PER_S,
    batch=8,
)
OPT_ON_80GB = GpuEngine(
    "OPT-13B on an A100-80GB",
    OPT_13B,
    _OPT_COST,
    stages=1,
    kv_tokens=66_144,
    host_tokens=64 * GIB // OPT_13B.kv_token_bytes,
    host_bytes_per_s=_PCIE_BYTES_PER_S,
    batch=16,
)
#: The same with 90 % of 40 GB, for the ablations of the paper; half the batch.
OPT_ON_40GB = replace(OPT_ON_80GB, name="OPT-13B on an A100-40GB", kv_tokens=12_200, batch=8)

ENGINES = {engine.name: engine for engine in (GPT3_ON_16, OPT_ON_80GB, OPT_ON_40GB)}


class Scheduler(StrEnum):
    """Schedulers that the studies compare."""

    REQUEST_LEVEL = "request-level"  #: FasterTransformer
    FCFS = "FCFS"  #: Orca
    FCFS_ON_DEMAND = "FCFS, blocks on demand"  #: vLLM
    MLFQ_PREEMPTION = "MLFQ, preemption"
    MLFQ_NO_PREEMPTION = "MLFQ, no preemption"
    FASTSERVE = "FastServe"
    SRPT = "SRPT"  #: an oracle of output lengths: the bound


@dataclass(frozen=True, slots=True)
class Queues:
    """Parameters of FastServe's queues.

    Attributes:
        quantum_ratio: ratio of each queue's quantum to that of the queue above.
        starve_limit_s: as in `MlfqPolicy`; `None` never promotes.
        when_full: policy for full KV memory.
        spare_slots: kept free with `PROACTIVE` (K).
    """

    quantum_ratio: float = 2.0
    starve_limit_s: float | None = 30.0
    when_full: WhenFull = WhenFull.PROACTIVE
    spare_slots: int = 2

    def policy(self, engine: GpuEngine) -> MlfqPolicy:
        """Return the queues on an engine."""
        starve_limit_s = float("inf") if self.starve_limit_s is None else self.starve_limit_s
        return queues_for(engine.cost, self.quantum_ratio, starve_limit_s)

    @property
    def swap(self) -> SwapPolicy:
        """The policy when KV memory is full."""
        return SwapPolicy(self.when_full, spare_slots=self.spare_slots)


USUAL_QUEUES = Queues()


def worker_policy(engine: GpuEngine, scheduler: Scheduler, queues: Queues) -> WorkerPolicy:
    """Return a scheduler as a worker's policy."""
    own = WorkerPolicy(
        BatchLimits(max_num_seqs=engine.batch),
        prefix_caching=False,
        reserve=Reserve.MAX_TOKENS,
        max_in_flight=engine.stages,
    )
    if scheduler is Scheduler.FCFS:
        return own
    if scheduler is Scheduler.REQUEST_LEVEL:
        return replace(own, batching=Batching.REQUEST_LEVEL, max_in_flight=1)
    on_demand = replace(own, reserve=Reserve.ON_DEMAND)
    if scheduler is Scheduler.FCFS_ON_DEMAND:
        return on_demand
    on_demand = replace(on_demand, swap=queues.swap)
    if scheduler is Scheduler.SRPT:
        return replace(on_demand, scheduling=Scheduling.SRPT)
    mlfq = replace(queues.policy(engine), skips=scheduler is not Scheduler.MLFQ_NO_PREEMPTION)
    return replace(on_demand, scheduling=Scheduling.MLFQ, mlfq=mlfq, cost=engine.cost)


def interruptions(engine: GpuEngine, scheduler: Scheduler, queues: Queues) -> InterruptedPrompts | None:
    """Return how interrupted prompts lose their work, which only MLFQ with preemption does."""
    if scheduler is not Scheduler.MLFQ_PREEMPTION:
        return None
    return InterruptedPrompts(engine.cost, queues.policy(engine))
