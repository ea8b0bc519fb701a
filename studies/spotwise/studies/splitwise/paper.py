"""The Splitwise paper's questions about clusters as searches: limits, answers without SLOs, and provisioned splits (Patel et
al., "Splitwise", ISCA 2024, sections 6.2 to 6.6, figures 12 and 18 to 20)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.loads.workload import ClusterWorkload
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.clusters import (
    BASELINE_A100,
    BASELINE_H100,
    DESIGNS,
    PAPER_SPLITS,
    SPLITWISE_AA,
    SPLITWISE_HH,
    SPLITWISE_HHCAP,
    Design,
    Split,
)
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.searches.provisioning import Objective, Provisioned, cheapest_split
from spotwise.simulator.searches.search import Grid, Limit, Search, limit_of

#: Rate for which the paper provisions a code cluster, requests a second.
CODE_RATE = 70.0
#: Load over the limit at which the saturated throughput is measured.
_OVERLOAD = 3.0


@dataclass(frozen=True, slots=True)
class ClusterScope:
    """Size of the searches.

    Attributes:
        workloads: `code` and `conv`.
        seconds: time in which requests arrive in each run.
        seeds: seeds whose mean a limit is.
        model, decode_model, profile: as in `Case`.
    """

    workloads: Mapping[str, ClusterWorkload]
    seconds: float
    grid: Grid
    seeds: tuple[int, ...]
    model: str = "bloom-176b"
    decode_model: DecodeModel = DecodeModel.HONEST
    profile: Path | None = None

    def case(self, design: Design, split: Split, workload: str, rate: float | None = None) -> Case:
        """Return a run of this scope."""
        return Case(
            design.cluster(split),
            self.workloads[workload],
            rate,
            self.seconds,
            self.seeds[0],
            self.model,
            self.decode_model,
            self.profile,
        )


@dataclass(frozen=True, slots=True)
class PaperCluster:
    """A cluster of the paper and its load.

    Attributes:
        budget: `iso-power` or `iso-cost`.
        made_for: the workload that its split is for.
        served: the workload that it receives.
    """

    budget: str
    made_for: str
    served: str
    design: str

    @property
    def split(self) -> Split:
        """Its machines."""
        return PAPER_SPLITS[self.budget, self.made_for][self.design]


@dataclass(frozen=True, slots=True)
class ClusterFindings:
    """Results of the searches.

    Attributes:
        limits: highest rates of the paper's clusters.
        saturated: requests a second answered under three times the limit, by design.
        cheapest: splits for the paper's numbers of machines, by question.
    """

    limits: Mapping[PaperCluster, Limit]
    saturated: Mapping[str, float]
    cheapest: Mapping[str, Provisioned]


HHCAP_POWER = "equal throughput: least power of Splitwise-HHcap"
AA_COST = "equal throughput: least cost of Splitwise-AA"
HH_CODE = "70 requests/s of code: least cost of Splitwise-HH"


def clusters() -> list[PaperCluster]:
    """Return all clusters whose limits the headlines use, in the order of the paper."""
    own = [
        PaperCluster(budget, workload, workload, design)
        for (budget, workload), splits in PAPER_SPLITS.items()
        for design in splits
    ]
    # A conversation load on a cluster that was made for code (figure 20).
    moved = [
        PaperCluster("iso-power", "code", "conv", design) for design in DESIGNS if DESIGNS[design].token is not None
    ]
    return own + moved


def limit_searches(scope: ClusterScope, chosen: Sequence[PaperCluster]) -> dict[PaperCluster, Search[Limit]]:
    """Search the limits of clusters."""
    return {
        cluster: limit_of(scope.case(DESIGNS[cluster.design], cluster.split, cluster.served), scope.grid, scope.seeds)
        for cluster in chosen
    }


def saturation_searches(scope: ClusterScope) -> dict[str, Search[float]]:
    """Search the saturated throughput of clusters of equal power (section 6.6)."""
    return {
        design.name: _saturated(scope, design) for design in (BASELINE_A100, SPLITWISE_AA, BASELINE_H100, SPLITWISE_HH)
    }


def provisioning_searches(scope: ClusterScope) -> dict[str, Search[Provisioned]]:
    """Search the numbers of machines that the paper gives."""
    return {
        HHCAP_POWER: _at_throughput_of_h100(scope, SPLITWISE_HHCAP, Objective.POWER, Split(60, 40)),
        AA_COST: _at_throughput_of_h100(scope, SPLITWISE_AA, Objective.COST, Split(100, 80)),
        HH_CODE: cheapest_split(
            scope.case(SPLITWISE_HH, Split(1, 1), "code", CODE_RATE),
            SPLITWISE_HH,
            Objective.COST,
            scope.seeds,
            Split(60, 20),
        ),
    }


def _saturated(scope: ClusterScope, design: Design) -> Search[float]:
    case = scope.case(design, PAPER_SPLITS["iso-power", "conv"][design.name], "conv")
    limit = yield from limit_of(case, scope.grid, scope.seeds[:1])
    rate = _OVERLOAD * max(limit.mean, scope.grid.step)
    (run,) = yield [replace(case, rate=rate)]
    return run.requests_per_s


def _at_throughput_of_h100(
    scope: ClusterScope, design: Design, objective: Objective, most: Split
) -> Search[Provisioned]:
    base = scope.case(BASELINE_H100, PAPER_SPLITS["iso-power", "conv"][BASELINE_H100.name], "conv")
    limit = yield from limit_of(base, scope.grid, scope.seeds)
    rate = max(scope.grid.step, round(limit.mean / scope.grid.step) * scope.grid.step)
    case = scope.case(design, Split(1, 1), "conv", rate)
    return (yield from cheapest_split(case, design, objective, scope.seeds, most))


def runs_by_design(limits: Mapping[PaperCluster, Limit], budget: str, workload: str) -> dict[str, Sequence[RunSummary]]:
    """Return the runs of a figure's clusters, by label, for `plot_latencies`."""
    return {
        limit.runs[0].case.label: limit.runs
        for cluster, limit in limits.items()
        if (cluster.budget, cluster.made_for, cluster.served) == (budget, workload, workload)
    }


def heat_map(
    case: Case, design: Design, prompts: Sequence[int], tokens: Sequence[int]
) -> Search[list[list[RunSummary]]]:
    """Run every split of a design in a rectangle, rows by token machines, columns by prompt machines (Splitwise, figure 12)."""
    splits = [[Split(prompt, token) for prompt in prompts] for token in tokens]
    runs = yield [replace(case, cluster=design.cluster(split)) for row in splits for split in row]
    return [list(runs[row * len(prompts) : (row + 1) * len(prompts)]) for row in range(len(tokens))]
