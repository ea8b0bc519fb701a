"""All of a case but its load: machines with profiles, objectives, policies, and machines that come and go."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spotwise.core.costs.cost_model import LinkCost
from spotwise.core.costs.cost_profile import CostProfile
from spotwise.core.messages.members import Pool
from spotwise.simulator.costs.hardware import LanguageModel
from spotwise.simulator.costs.machine_costs import built_in_costs
from spotwise.simulator.loads.workload import ClusterWorkload, PriorityShare
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.clusters import Cluster, Design, Hardware
from spotwise.simulator.runs.machine_changes import MachineChange, lives_of
from spotwise.simulator.runs.own_machines import OwnMachine
from spotwise.simulator.runs.serving_policy import USUAL_POLICY, ServingPolicy
from spotwise.simulator.runs.setups import own_setup
from spotwise.simulator.runs.slo import SPLITWISE_SLOS, Objectives
from spotwise.simulator.world.settings import WorldSettings


@dataclass(frozen=True, slots=True)
class ClusterScenario:
    """All of a case but its load."""

    cluster: Cluster
    policy: ServingPolicy = USUAL_POLICY
    objectives: Objectives = SPLITWISE_SLOS
    priorities: tuple[PriorityShare, ...] = ()
    changes: tuple[MachineChange, ...] = ()

    def __post_init__(self) -> None:
        """Raise `ValueError` where it cannot run: machines have no profiles, a policy needs what none has, or all leave."""
        if not self.cluster.own_kinds:
            raise ValueError(
                f"{self.cluster.name} has no machines with profiles; paper_machine makes one of the paper's"
            )
        lives_of(self.cluster, self.changes)
        own_setup(self.cluster, self.policy)

    def case(self, workload: ClusterWorkload, rate: float | None, seconds: float | None, seed: int = 0) -> Case:
        """Return a run under a load; the arguments are the case's."""
        return Case(
            self.cluster,
            replace(workload, priorities=self.priorities),
            rate,
            seconds,
            seed,
            policy=self.policy,
            objectives=self.objectives,
            changes=self.changes,
        )

    def designs(self) -> list[Design]:
        """Return what can be made of its kinds of machine in any numbers: each of mixed machines alone, and each of prompt
        machines with each of token machines. Raises `ValueError` where two of these cannot serve together."""
        pools = {pool: [group.kind for group in self.cluster.groups if group.pool is pool] for pool in Pool}
        mixed = [Design(kind.name, kind) for kind in pools[Pool.MIXED]]
        split = [
            Design(f"{prompt.name}+{token.name}", prompt, token)
            for prompt in pools[Pool.PROMPT]
            for token in pools[Pool.TOKEN]
        ]
        return mixed + split


def paper_machine(hardware: Hardware, model: LanguageModel, name: str | None = None) -> OwnMachine:
    """Return one of the paper's machines with its built-in honest costs, memory and link as a kind beside others.

    Raises:
        ProfileError: the model has no built-in costs.
        ValueError: it does not fit the machine.
    """
    cost = built_in_costs(model)[hardware.profile]
    usual = WorldSettings(model)
    profile = CostProfile(
        name or hardware.name,
        cost,
        LinkCost(usual.link_latency_s, hardware.link_bytes_per_s),
        model.kv_token_bytes,
        hardware.serving(cost).kv_tokens(model, usual.memory_share),
        usual.control_latency_s,
    )
    return OwnMachine(
        profile.name,
        profile,
        hardware.price_per_hour,
        hardware.power,
        overlap_layers=model.layers,
        has_paper_costs=True,
    )
