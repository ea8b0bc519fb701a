"""Small worlds for tests, and an observer that keeps everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from spotwise.core.costs.cost_model import BatchShape, IterationCost, LinearIterationCost
from spotwise.core.messages.members import Pool
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.simulator.costs.hardware import LanguageModel, MachineType
from spotwise.simulator.world.observation import Arrival, CompletedRequest, WorldResult
from spotwise.simulator.world.settings import SimulatedMachine, WorldSettings
from spotwise.simulator.world.world import World

#: 1,000 bytes of KV a token, in ten layers.
MODEL = LanguageModel("tiny", weight_bytes=0, layers=10, heads=5, kv_heads=5, head_size=10, value_bytes=1)
COST = LinearIterationCost(0.01, 0.0001, 0.0, 0.0005, 0.000001)


def machine_type(kv_tokens: int = 4096, link_bytes_per_s: float = 1e7, cost: IterationCost = COST) -> MachineType:
    """A machine with memory for so many tokens."""
    return MachineType("tiny", cost, kv_tokens * MODEL.kv_token_bytes, link_bytes_per_s)


def machines(
    prompt: int = 0, token: int = 0, mixed: int = 0, kind: MachineType | None = None
) -> list[SimulatedMachine]:
    pools = [Pool.PROMPT] * prompt + [Pool.TOKEN] * token + [Pool.MIXED] * mixed
    return [SimulatedMachine(kind or machine_type(), pool) for pool in pools]


def settings(policy: WorkerPolicy | None = None, **changes: object) -> WorldSettings:
    """Settings, without latencies by default."""
    given = {
        "memory_share": 1.0,
        "max_new_tokens": 64,
        "control_latency_s": 0.0,
        "link_latency_s": 0.0,
        "policy": policy or WorkerPolicy(prefix_caching=False),
        **changes,
    }
    return WorldSettings(MODEL, **given)  # type: ignore[arg-type]


@dataclass
class Diary:
    """An observer that keeps all its calls."""

    completed: list[CompletedRequest] = field(default_factory=list)
    failed: list[tuple[Arrival, str]] = field(default_factory=list)
    iterations: list[tuple[str, BatchShape, float, int]] = field(default_factory=list)
    gaps: list[tuple[float, int]] = field(default_factory=list)

    def request_completed(self, request: CompletedRequest) -> None:
        self.completed.append(request)

    def request_failed(self, arrival: Arrival, reason: str) -> None:
        self.failed.append((arrival, reason))

    def iterations_ended(self, machine_id: str, shape: BatchShape, seconds: float, iterations: int = 1) -> None:
        self.iterations.append((machine_id, shape, seconds, iterations))

    def tokens_spaced(self, gaps_s: Sequence[float], tokens: int = 1) -> None:
        self.gaps += [(gap_s, tokens) for gap_s in gaps_s]

    def busy_s(self, machine_id: str) -> float:
        return sum(seconds for id_, _, seconds, _ in self.iterations if id_ == machine_id)

    def run_by(self, machine_id: str) -> int:
        return sum(count for id_, _, _, count in self.iterations if id_ == machine_id)


def serve(
    cluster: list[SimulatedMachine], arrivals: Iterable[Arrival], chosen: WorldSettings | None = None
) -> tuple[WorldResult, Diary]:
    diary = Diary()
    return World(cluster, chosen or settings(), diary).run(arrivals), diary
