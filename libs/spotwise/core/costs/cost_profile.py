"""A worker's measured costs, read by simulated workers and scheduling policies; its JSON: `spotwise.files.cost_profile`."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from spotwise.core.costs.cost_model import (
    LinearIterationCost,
    LinkCost,
    PiecewiseLinear,
    TableIterationCost,
)
from spotwise.core.costs.measured_range import MeasuredRange

#: Of a message, where unmeasured: a broker on the same machine or network.
USUAL_MESSAGE_S = 0.0005
#: Between device and host, each way, where unmeasured: PCIe 4.0 with 16 lanes.
USUAL_HOST_LINK = LinkCost(latency_s=1e-5, bytes_per_s=25e9)


@dataclass(frozen=True, slots=True)
class CostProfile:
    """One worker's costs; `kv_bytes_per_token` of all layers, `kv_tokens` the capacity of its KV cache.

    Attributes:
        link: cost of hand-offs; `None` where none was measured (mixed workers, or a worker alone).
        message_s: seconds from one member's decision to the next one's, over bus and store.
        host_link: cost of KV between device and host memory, either way; `None` where unmeasured.
        measured: how far the measurements of iterations reach; `None` where the profile does not say.
    """

    name: str
    iteration: LinearIterationCost | TableIterationCost
    link: LinkCost | None
    kv_bytes_per_token: int
    kv_tokens: int
    message_s: float = USUAL_MESSAGE_S
    host_link: LinkCost | None = None
    measured: MeasuredRange | None = None

    def __post_init__(self) -> None:
        if self.kv_bytes_per_token < 1 or self.kv_tokens < 1:
            raise ValueError("kv_bytes_per_token and kv_tokens must be at least 1")
        if not 0.0 <= self.message_s < math.inf:
            raise ValueError("message_s must be at least 0 and finite")

    @property
    def known_link(self) -> LinkCost:
        """The link of hand-offs; `ValueError` where no hand-off was measured."""
        if self.link is None:
            raise ValueError(
                f"{self.name!r} has no hand-offs, since a worker measured it alone: take mixed workers only, "
                "or record a mesh with prompt workers and token workers (spotwise profile)"
            )
        return self.link

    @property
    def context_parity(self) -> float:
        """Tokens of context that cost a prompt token as much as all else; infinite where they cost nothing."""
        cost = self.iteration
        if isinstance(cost, LinearIterationCost):
            token_s = cost.prompt_token_s
        else:
            token_s = (cost.prompt.seconds[-1] - cost.prompt.seconds[0]) / (cost.prompt.at[-1] - cost.prompt.at[0])
        return token_s / cost.prompt_context_s if token_s > 0 and cost.prompt_context_s > 0 else math.inf


#: About a DGX-H100 that serves Llama2-70B: TTFT 95 ms at 1,500 tokens, TBT 31 ms (Splitwise, table IV), an InfiniBand link of
#: 400 Gb/s, KV of 80 layers with 8 heads of 128 in 16 bits. The KV cache is smaller than the machine's, to save
#: memory in the simulator, and holds more than a few hundred sequences need.
BUILT_IN = CostProfile(
    name="about Llama2-70B on a DGX-H100",
    iteration=LinearIterationCost(
        fixed_s=0.028, prompt_token_s=4.4e-5, prompt_context_s=1.0e-9, decode_s=2.0e-4, decode_context_s=6.0e-8
    ),
    link=LinkCost(latency_s=0.001, bytes_per_s=50e9),
    kv_bytes_per_token=327_680,
    kv_tokens=262_144,
)


def at_speed(cost: LinearIterationCost | TableIterationCost, speed: float) -> LinearIterationCost | TableIterationCost:
    """Return an iteration's cost at `speed` times the speed, to simulate; `ValueError` unless `speed` is above 0 and finite."""
    if not 0.0 < speed < math.inf:
        raise ValueError(f"speed is {speed}; it must be above 0 and finite")
    if isinstance(cost, LinearIterationCost):
        return LinearIterationCost(*(getattr(cost, field.name) / speed for field in dataclasses.fields(cost)))
    prompt, decode = (
        PiecewiseLinear(table.at, tuple(each / speed for each in table.seconds)) for table in (cost.prompt, cost.decode)
    )
    contexts = cost.prompt_context_s / speed, cost.decode_context_s / speed
    return TableIterationCost(prompt, decode, *contexts, cost.mixed_factor)
