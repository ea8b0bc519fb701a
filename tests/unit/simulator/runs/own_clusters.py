"""Small clusters of machines with profiles."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.costs.cost_model import LinearIterationCost, LinkCost
from spotwise.core.costs.cost_profile import CostProfile
from spotwise.core.messages.members import Pool
from spotwise.simulator.runs.cluster_scenario import ClusterScenario
from spotwise.simulator.runs.clusters import Cluster, MachineGroup
from spotwise.simulator.runs.own_machines import OwnMachine

FAST = OwnMachine(
    "fast",
    CostProfile("model", LinearIterationCost(0.01, 1e-5, 0.0, 1e-4, 0.0), LinkCost(0.001, 1e10), 1000, 200_000),
    price_per_hour=3.0,
    power=0.5,
)
SLOW = replace(
    FAST, name="slow", profile=replace(FAST.profile, iteration=LinearIterationCost(0.03, 4e-5, 0.0, 3e-4, 0.0))
)


def cluster(*groups: tuple[OwnMachine, int, Pool]) -> Cluster:
    return Cluster("own", tuple(MachineGroup(*group) for group in groups))


def scenario(*groups: tuple[OwnMachine, int, Pool]) -> ClusterScenario:
    return ClusterScenario(cluster(*groups))
