"""From a cluster's description to the machines of a world: costs, settings, and what slowdowns are against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import IterationCost
from spotwise.core.kv.swap import SwapPolicy
from spotwise.core.scheduler.policy import DecodeQueue, PoolPolicy
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.simulator.costs.hardware import GIB, LANGUAGE_MODELS, LanguageModel
from spotwise.simulator.costs.machine_costs import (
    A100,
    DecodeModel,
    built_in_costs,
    costs_from,
    published_built_in_costs,
    published_costs_from,
)
from spotwise.simulator.costs.published_costs import PublishedIterationCost
from spotwise.simulator.runs.clusters import Cluster, Hardware
from spotwise.simulator.runs.machine_changes import MachineLife
from spotwise.simulator.runs.own_machines import OwnMachine, own_world
from spotwise.simulator.runs.serving_policy import USUAL_POLICY, ServingPolicy
from spotwise.simulator.runs.slo import AloneOn, PublishedAlone, Uncontended
from spotwise.simulator.world.events import EventQueue
from spotwise.simulator.world.observation import Observer
from spotwise.simulator.world.settings import WITHOUT_PREFIXES, Overlap, SimulatedMachine, WorldSettings
from spotwise.simulator.world.world import World

#: Bytes of a gibibyte of weights in the published simulator, which takes it for a gigabyte.
_PUBLISHED_WEIGHT_GIB = 1_000_000_000
#: Sequences of an iteration in the published simulator at most; beside prompts that fill it decodes pause.
_PUBLISHED_LIMITS = BatchLimits(max_num_seqs=512, decodes_pause=True)
#: Rate of every transfer in the published simulator, on any machine; it has no overlapped transfer.
_PUBLISHED_LINK_BYTES_PER_S = 200 * GIB


@dataclass(frozen=True, slots=True)
class ClusterSetup:
    """A world's settings, one machine of each of the cluster's groups, and the reference of slowdowns."""

    machines: tuple[SimulatedMachine, ...]
    reference: Uncontended
    settings: WorldSettings


def own_setup(cluster: Cluster, policy: ServingPolicy, *, prefix_caching: bool = False) -> ClusterSetup:
    """Return the world of machines with profiles; slowdowns are against the first of them, idle. A machine without host memory
    recomputes where others swap.

    Raises:
        ValueError: the policy swaps KV, and no machine has memory for it.
    """
    kinds = cluster.own_kinds
    settings = own_world(kinds, policy.workers(kinds[0].profile.iteration, prefix_caching=prefix_caching))
    pools = PoolPolicy() if prefix_caching else WITHOUT_PREFIXES
    settings = replace(settings, pools=policy.pools(pools), max_new_tokens=policy.max_new_tokens)
    block_bytes = settings.kv_block_size * settings.model.kv_token_bytes
    machines, swap = [], False
    for group in cluster.groups:
        kind = group.kind
        assert isinstance(kind, OwnMachine)
        machine_type = kind.machine_type(settings.model)
        own = policy.workers(kind.profile.iteration, kind.profile.context_parity, prefix_caching=prefix_caching)
        if machine_type.host_memory_bytes >= block_bytes:
            swap = True
        elif policy.when_full.swaps:
            own = replace(own, swap=SwapPolicy())
        machines.append(SimulatedMachine(machine_type, group.pool, own, kind.overlap))
    _require_host_memory(policy, swap)
    return ClusterSetup(tuple(machines), AloneOn(kinds[0].profile.iteration), settings)


def paper_setup(
    cluster: Cluster,
    model_name: str,
    decode_model: DecodeModel,
    profile: Path | None,
    policy: ServingPolicy,
    *,
    prefix_caching: bool = False,
) -> ClusterSetup:
    """Return the world of the paper's machines. A decode model that changes one thing of the published one keeps the published
    reference of slowdowns, and has no prefix caches.

    Raises:
        ProfileError: the profile is wrong, or has nothing of the model.
        ValueError: the policy swaps KV.
    """
    _require_host_memory(policy, False)
    model = LANGUAGE_MODELS[model_name]
    if decode_model is DecodeModel.HONEST:
        costs = built_in_costs(model) if profile is None else costs_from(profile, model)
        machines = _paper_machines(cluster, costs, policy, prefix_caching=prefix_caching)
        settings = WorldSettings(
            model,
            WorkerPolicy(prefix_caching=prefix_caching),  # each machine has its own
            pools=policy.pools(PoolPolicy() if prefix_caching else WITHOUT_PREFIXES),
            max_new_tokens=policy.max_new_tokens,
        )
        return ClusterSetup(machines, AloneOn(costs[A100]), settings)
    reference = PublishedAlone(_published_costs(model, DecodeModel.PUBLISHED, profile)[A100])
    machines = _paper_machines(cluster, _published_costs(model, decode_model, profile), policy)
    if policy.limits == USUAL_POLICY.limits:
        machines = tuple(
            replace(each, policy=replace(each.policy, limits=_PUBLISHED_LIMITS)) for each in machines if each.policy
        )
    return ClusterSetup(machines, reference, _published_settings(model, policy))


def world_of(
    setup: ClusterSetup, lives: Sequence[MachineLife], observer: Observer, *, reports_machines: bool = False
) -> World:
    """Return the world, with what is to happen to its machines; `reports_machines` is the settings'."""
    queue = EventQueue()
    first = [setup.machines[life.group] for life in lives if not life.joins]
    changes = any(life.joins or life.gone_s is not None for life in lives)
    settings = replace(setup.settings, elastic=changes, reports_machines=reports_machines)
    world = World(first, settings, observer, queue)

    def join(joining: tuple[str, SimulatedMachine]) -> None:
        world.join(*joining)

    for life in lives:
        if life.joins:
            queue.at(life.from_s, join, (life.machine_id, setup.machines[life.group]))
    for life in lives:
        if life.noticed_s is not None and life.gone_s is not None:
            world.notice_at(life.noticed_s, life.machine_id, life.gone_s - life.noticed_s)
    return world


def _require_host_memory(policy: ServingPolicy, is_there: bool) -> None:
    if policy.when_full.swaps and not is_there:
        raise ValueError(
            f"when_full {policy.when_full.value} swaps KV to host memory, and no machine has any; give machines of a cluster "
            "file host_memory"
        )


def _paper_machines(
    cluster: Cluster, costs: Mapping[str, IterationCost], policy: ServingPolicy, *, prefix_caching: bool = False
) -> tuple[SimulatedMachine, ...]:
    machines = []
    for group in cluster.groups:
        assert isinstance(group.kind, Hardware)
        kind = group.kind.serving(costs[group.kind.profile])
        machines.append(SimulatedMachine(kind, group.pool, policy.workers(kind.cost, prefix_caching=prefix_caching)))
    return tuple(machines)


def _published_costs(
    model: LanguageModel, decode_model: DecodeModel, profile: Path | None
) -> dict[str, PublishedIterationCost]:
    if profile is None:
        return published_built_in_costs(model, decode_model)
    return published_costs_from(profile, model, decode_model)


def _published_settings(model: LanguageModel, policy: ServingPolicy) -> WorldSettings:
    # Its KV has all heads of the queries, also where they are grouped.
    weight_bytes = model.weight_bytes // GIB * _PUBLISHED_WEIGHT_GIB
    model = replace(model, weight_bytes=weight_bytes, kv_heads=model.heads)
    # Its scheduler sees computed prompts at once, never re-purposes a machine, and never serves in place what it can split.
    pools = PoolPolicy(decode_queue=DecodeQueue.SEQUENCES, break_even=False, repurpose_window_s=None, prefix_spans=0)
    return WorldSettings(
        model,
        pools=policy.pools(pools),
        knows_output=True,
        memory_share=1.0,
        control_latency_s=0.0,
        overlap=Overlap(crossover_tokens=None),
        link_latency_s=0.0,
        private_link_bytes_per_s=_PUBLISHED_LINK_BYTES_PER_S,
        news_interval_s=0.0,
        beats_after_endings=True,
    )
