"""Kinds of machine that users describe, by cost profiles that `spotwise profile` recorded or that were written by hand, and the
world that such machines are in. All times are the profiles'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spotwise.core.costs.cost_model import NO_LINK, LinkCost
from spotwise.core.costs.cost_profile import USUAL_HOST_LINK, CostProfile
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.simulator.costs.hardware import LanguageModel, MachineType
from spotwise.simulator.world.settings import Overlap, WorldSettings


@dataclass(frozen=True, slots=True)
class OwnMachine:
    """A kind of machine with a cost profile of its own.

    Attributes:
        profile: its costs with its model; `link` is what hand-offs visibly cost, `None` for machines that make none.
        price_per_hour: US dollars.
        power: in units of a DGX-A100's; 0 where unknown.
        host_memory_bytes: for swapped-out KV.
        overlap_layers: layers of the model: the KV of a prompt's chunk goes layer by layer while the next one is computed, and
            `link` is the bare one. `None`: all of it goes when its prompt is computed, as a recorded link's cost includes.
        crossover_tokens: with `overlap_layers`: a smaller chunk goes when it is computed.
        has_paper_costs: it is one of the paper's machines, whose costs have no measured range.
    """

    name: str
    profile: CostProfile
    price_per_hour: float = 0.0
    power: float = 0.0
    host_memory_bytes: int = 0
    overlap_layers: int | None = None
    crossover_tokens: int = 512
    has_paper_costs: bool = False

    def __post_init__(self) -> None:
        if min(self.price_per_hour, self.power, self.host_memory_bytes) < 0:
            raise ValueError(f"{self.name}: price, power and host memory are at least 0")
        if self.overlap_layers is not None and self.overlap_layers < 1:
            raise ValueError(f"{self.name}: overlap_layers must be at least 1; without it nothing overlaps")

    @property
    def overlap(self) -> Overlap:
        """How its hand-offs overlap with its prompts."""
        return Overlap(None if self.overlap_layers is None else self.crossover_tokens, self.overlap_layers)

    def changed(
        self,
        *,
        price_per_hour: float | None = None,
        power: float | None = None,
        kv_tokens: int | None = None,
        link: LinkCost | None = None,
        host_memory_bytes: int | None = None,
        host_link: LinkCost | None = None,
        overlap_layers: int | None = None,
        message_s: float | None = None,
    ) -> OwnMachine:
        """Return the kind with these differences; `None` changes nothing."""
        of_profile = {"kv_tokens": kv_tokens, "link": link, "host_link": host_link, "message_s": message_s}
        own = {"price_per_hour": price_per_hour, "power": power, "host_memory_bytes": host_memory_bytes}
        profile = replace(self.profile, **_given(of_profile))
        return replace(self, profile=profile, overlap_layers=overlap_layers or self.overlap_layers, **_given(own))

    def machine_type(self, model: LanguageModel) -> MachineType:
        """Return the machine in a world whose KV tokens have the size of `model`'s; its capacities in tokens are its own."""
        profile, token_bytes = self.profile, model.kv_token_bytes
        link, host_link = profile.link or NO_LINK, profile.host_link or USUAL_HOST_LINK
        return MachineType(
            self.name,
            profile.iteration,
            profile.kv_tokens * token_bytes,
            link.bytes_per_s,
            self.host_memory_bytes // profile.kv_bytes_per_token * token_bytes,
            host_link.bytes_per_s * token_bytes / profile.kv_bytes_per_token,
            link.latency_s,
        )


def _given(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if value is not None}


def own_model(profile: CostProfile) -> LanguageModel:
    """Return the profile's language model, with the one size that a simulation uses: the KV bytes of a token."""
    return LanguageModel(profile.name, 0, 1, 1, 1, 1, value_bytes=max(1, profile.kv_bytes_per_token // 2))


def own_world(machines: Sequence[OwnMachine], policy: WorkerPolicy) -> WorldSettings:
    """Return the world of these kinds of machine; a message takes as long as the slowest of their profiles says."""
    return WorldSettings(
        own_model(machines[0].profile),
        policy,
        memory_share=1.0,  # a profile's memory is what is left for KV
        control_latency_s=max(machine.profile.message_s for machine in machines),
    )


def require_hand_overs(machines: Sequence[OwnMachine]) -> None:
    """Raise `ValueError` unless these machines can hand KV to one another: each has a link, and a token's KV is as large in
    all."""
    for machine in machines:
        if machine.profile.link is None:
            raise ValueError(
                f"{machine.name} has no link, which KV that moves needs: give it one (latency_s, bytes_per_s), record a mesh "
                "with prompt workers and token workers (spotwise profile), or make all machines mixed"
            )
    first = machines[0]
    for machine in machines:
        theirs, ours = first.profile.kv_bytes_per_token, machine.profile.kv_bytes_per_token
        if theirs != ours:
            raise ValueError(
                f"{first.name} and {machine.name} hand KV over, and a token's is {theirs} and {ours} bytes: machines of prompt "
                "and token pools serve the same model; give both the same kv_bytes_per_token, or make them all mixed"
            )
