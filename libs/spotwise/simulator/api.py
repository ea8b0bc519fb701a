"""The simulator from Python (docs/simulator-api.md): machines, a cluster of them, and runs under a load. Its functions make the
values that the command line makes of options and files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from spotwise.core.costs.cost_model import LinkCost
from spotwise.core.costs.cost_profile import CostProfile
from spotwise.core.messages.members import Pool
from spotwise.files.cost_profile import read_cost_profile
from spotwise.simulator.costs.hardware import LANGUAGE_MODELS
from spotwise.simulator.loads.trace_files import MOONCAKE_BLOCK_TOKENS
from spotwise.simulator.loads.workload import ArrivalKind, ClusterWorkload, PriorityShare
from spotwise.simulator.runs.cluster_file import ObjectiveTerms, read_cluster
from spotwise.simulator.runs.cluster_scenario import ClusterScenario, paper_machine
from spotwise.simulator.runs.clusters import PAPER_MACHINES, Cluster, MachineGroup
from spotwise.simulator.runs.experiment import simulate as simulate_case
from spotwise.simulator.runs.intervals import SeedMeans
from spotwise.simulator.runs.machine_changes import MachineChange
from spotwise.simulator.runs.own_machines import OwnMachine
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.runs.serving_policy import USUAL_POLICY, ServingPolicy
from spotwise.simulator.runs.slo import SPLITWISE_SLOS, Objectives
from spotwise.simulator.searches.parallel import drive
from spotwise.simulator.searches.search import Search

#: Bounds by metric and percentile, as `{"ttft": {"p99": 2.0}}`.
Bounds = Mapping[str, Mapping[str, float]]


def machines(
    kind: str | Path | CostProfile,
    count: int,
    pool: str = "mixed",
    *,
    model: str = "llama2-70b",
    name: str | None = None,
    price_per_hour: float | None = None,
    power: float | None = None,
    kv_tokens: int | None = None,
    link: LinkCost | None = None,
    host_memory_bytes: int | None = None,
    host_link: LinkCost | None = None,
    overlap_layers: int | None = None,
) -> MachineGroup:
    """Return equal machines of one pool; the rest, where it is not given, is the kind's.

    Args:
        kind: one of the paper's machines (`dgx-a100`, `dgx-h100`, `dgx-h100-capped`), the file of a cost profile, or a profile.
        pool: `prompt`, `token` or `mixed`.
        model: language model of one of the paper's machines.
        name: in reports; that of the kind by default.
        price_per_hour: US dollars.
        power: in units of a DGX-A100's.
        kv_tokens: capacity of the KV cache.
        link: link between two machines for hand-offs.
        host_memory_bytes: for swapped-out KV; `host_link`: to it.
        overlap_layers: layers of the model, where hand-offs go layer by layer behind the computing.

    Raises:
        ValueError: there is no such kind, model or pool, the file is no profile, or a number is wrong.
        OSError: the file cannot be read.
    """
    if isinstance(kind, str):
        if kind not in PAPER_MACHINES or model not in LANGUAGE_MODELS:
            kinds, models = ", ".join(PAPER_MACHINES), ", ".join(LANGUAGE_MODELS)
            raise ValueError(
                f"{kind!r} with {model!r}: take one of {kinds}, with one of {models}, or a Path of a profile"
            )
        own = paper_machine(PAPER_MACHINES[kind], LANGUAGE_MODELS[model], name)
    else:
        profile = read_cost_profile(kind) if isinstance(kind, Path) else kind
        own = OwnMachine(name or profile.name or "machine", profile)
    own = own.changed(
        price_per_hour=price_per_hour,
        power=power,
        kv_tokens=kv_tokens,
        link=link,
        host_memory_bytes=host_memory_bytes,
        host_link=host_link,
        overlap_layers=overlap_layers,
    )
    return MachineGroup(own, count, Pool(pool))


def bounds(
    *, slowdown: Bounds | None = None, seconds: Bounds | None = None, against: MachineGroup | None = None
) -> Objectives:
    """Return upper bounds of latencies; without any the paper's nine slowdowns.

    Args:
        slowdown: bounds of `ttft`, `tbt` and `e2e`, against one idle machine, at `p50`, `p90` and `p99`.
        seconds: bounds of these and of `itl`.
        against: machines, one of which slowdowns are against; `None`: the cluster's first.

    Raises:
        ValueError: there is no such metric or percentile, or a bound is wrong.
    """
    terms = ObjectiveTerms.model_validate({"slowdown": slowdown or {}, "seconds": seconds or {}})
    alone = None if against is None else cast(OwnMachine, against.kind).profile.iteration
    return Objectives(terms.bounds(), alone)


def cluster(
    *groups: MachineGroup,
    name: str = "cluster",
    policy: ServingPolicy = USUAL_POLICY,
    objectives: Objectives = SPLITWISE_SLOS,
    priorities: Iterable[PriorityShare] = (),
    changes: Iterable[MachineChange] = (),
) -> ClusterScenario:
    """Return machines that serve together, and how.

    Raises:
        ValueError: they cannot serve together, a policy needs what no machine has, or all machines leave.
    """
    own = Cluster(name, groups)
    return ClusterScenario(own, policy, objectives, tuple(priorities), tuple(changes))


def read(path: Path) -> ClusterScenario:
    """Read a cluster file; raises `ClusterFileError`, which is a `ValueError`, where it is wrong."""
    return read_cluster(path)


def simulate(
    cluster: ClusterScenario,
    workload: str | Path = "conv",
    *,
    rate: float | None = None,
    seconds: float | None = 120.0,
    own_arrivals: bool = False,
    jointly: bool = False,
    block_tokens: int = MOONCAKE_BLOCK_TOKENS,
    prefix_caching: bool = True,
    seed: int = 0,
    seeds: int = 1,
    jobs: int = 1,
) -> SeedMeans:
    """Serve a load to its last request, once with each seed; the same arguments give the same figures.

    Args:
        workload: `code` or `conv`, whose sizes are drawn, or the path of a trace.
        rate: requests a second; `None` with `own_arrivals`: the trace's.
        seconds: time in which requests arrive; `None` to the end of a trace.
        own_arrivals: the trace's own, and not random ones.
        jointly: draw a prompt of the trace with its answer, and not each alone.
        block_tokens: tokens of a block that the trace's hashes name.
        prefix_caching: reuse equal beginnings of prompts, where the trace has hashes of their blocks.
        seed: the first of `seeds`.
        jobs: processes. With more than one a script needs `if __name__ == "__main__":` around what it does.

    Raises:
        TraceError: the trace cannot be read, or a line is wrong.
        ValueError: there is no such workload, or random arrivals lack a rate or seconds.
    """
    path = workload if isinstance(workload, Path) else None
    kind = ArrivalKind.TRACE if own_arrivals else ArrivalKind.POISSON
    load = ClusterWorkload(str(workload) if path is None else path.stem, path, kind, jointly, block_tokens)
    first = replace(cluster.case(load, rate, seconds), prefix_caching=prefix_caching)
    cases = [replace(first, seed=seed + number) for number in range(seeds)]

    def once() -> Search[tuple[RunSummary, ...]]:
        return tuple((yield cases))

    return SeedMeans(drive({"": once()}, jobs, simulate_case)[""])
