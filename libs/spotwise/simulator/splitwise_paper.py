"""The paper's headlines about clusters, measured again.

Law: a headline is a ratio, or a number of machines, of limits and splits that the simulator finds; nothing in here is tuned to
the paper. The paper's number stands beside ours, and where the two differ there is a reason that can be checked by running
something else.

Source: Patel et al., "Splitwise", ISCA 2024, sections 6.2 to 6.6, figures 12 and 18 to 20. Limits of its published simulator
are from 184 runs of it on traces of two minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spotwise.simulator.designs import (
    BASELINE_A100,
    BASELINE_H100,
    DESIGNS,
    PAPER_SPLITS,
    SPLITWISE_AA,
    SPLITWISE_HA,
    SPLITWISE_HH,
    SPLITWISE_HHCAP,
    Design,
    Split,
)
from spotwise.simulator.experiment import Case, RunSummary
from spotwise.simulator.machine_costs import DecodeModel
from spotwise.simulator.provisioning import Objective, Provisioned, cheapest_split
from spotwise.simulator.search import Grid, Limit, Search, limit_of
from spotwise.simulator.workload import Workload

#: Rate for which the paper provisions a code cluster, requests a second.
CODE_RATE = 70.0
#: How far above its limit a cluster is loaded to see what it can do at all.
_OVERLOAD = 3.0


@dataclass(frozen=True, slots=True)
class Scope:
    """What the headlines are measured with.

    Attributes:
        workloads: `code` and `conv`.
        seconds: for how long requests come in each run.
        grid: of rates.
        seeds: of which limits are means.
        model, decode_model, profile: as in `Case`.
    """

    workloads: Mapping[str, Workload]
    seconds: float
    grid: Grid
    seeds: tuple[int, ...]
    model: str = "bloom-176b"
    decode_model: DecodeModel = DecodeModel.HONEST
    profile: Path | None = None

    def case(self, design: Design, split: Split, workload: str, rate: float | None = None) -> Case:
        """Return a run of this scope."""
        return Case(
            design.name,
            split,
            self.workloads[workload],
            rate,
            self.seconds,
            self.seeds[0],
            self.model,
            self.decode_model,
            self.profile,
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of the paper and what it is asked.

    Attributes:
        budget: `iso-power` or `iso-cost`.
        made_for: the workload that its split is for.
        asked: the workload that it gets.
        design: its name.
    """

    budget: str
    made_for: str
    asked: str
    design: str

    @property
    def split(self) -> Split:
        """Its machines."""
        return PAPER_SPLITS[self.budget, self.made_for][self.design]


@dataclass(frozen=True, slots=True)
class Findings:
    """What the searches found.

    Attributes:
        limits: of the paper's clusters.
        saturated: requests a second that a cluster answers when it is asked far too much, by design.
        cheapest: for the paper's questions about numbers of machines, by question.
    """

    limits: Mapping[Cluster, Limit]
    saturated: Mapping[str, float]
    cheapest: Mapping[str, Provisioned]


@dataclass(frozen=True, slots=True)
class Headline:
    """One sentence of the paper as a number.

    Attributes:
        name: what it is.
        paper: the paper's number.
        ours: ours; `None` where the search found nothing.
        spread: of ours, over the seeds; `None` where there is none.
        about: what it depends on, and why ours may differ.
    """

    name: str
    paper: float
    ours: float | None
    spread: tuple[float, float] | None = None
    about: str = ""


HHCAP_POWER = "equal throughput: least power of Splitwise-HHcap"
AA_COST = "equal throughput: least cost of Splitwise-AA"
HH_CODE = "70 requests/s of code: least cost of Splitwise-HH"


def clusters() -> list[Cluster]:
    """Return all clusters whose limits the headlines need, in the order of the paper."""
    own = [
        Cluster(budget, workload, workload, design)
        for (budget, workload), splits in PAPER_SPLITS.items()
        for design in splits
    ]
    # A conversation load on a cluster that was made for code (figure 20).
    moved = [Cluster("iso-power", "code", "conv", design) for design in DESIGNS if DESIGNS[design].token is not None]
    return own + moved


def limit_searches(scope: Scope, wanted: Sequence[Cluster]) -> dict[Cluster, Search[Limit]]:
    """Search the limits of clusters."""
    return {
        cluster: limit_of(scope.case(DESIGNS[cluster.design], cluster.split, cluster.asked), scope.grid, scope.seeds)
        for cluster in wanted
    }


def saturation_searches(scope: Scope) -> dict[str, Search[float]]:
    """Search what clusters of equal power answer when latency does not matter (section 6.6)."""
    return {
        design.name: _saturated(scope, design) for design in (BASELINE_A100, SPLITWISE_AA, BASELINE_H100, SPLITWISE_HH)
    }


def provisioning_searches(scope: Scope) -> dict[str, Search[Provisioned]]:
    """Search the numbers of machines that the paper gives."""
    return {
        HHCAP_POWER: _at_throughput_of_h100(scope, SPLITWISE_HHCAP, Objective.POWER, Split(60, 40)),
        AA_COST: _at_throughput_of_h100(scope, SPLITWISE_AA, Objective.COST, Split(100, 80)),
        HH_CODE: cheapest_split(
            scope.case(SPLITWISE_HH, Split(1, 1), "code", CODE_RATE), Objective.COST, scope.seeds, Split(60, 20)
        ),
    }


def headlines(found: Findings) -> list[Headline]:
    """Put what was found beside what the paper says."""
    power = {design: Cluster("iso-power", "conv", "conv", design) for design in DESIGNS}
    cost = {design: Cluster("iso-cost", "conv", "conv", design) for design in DESIGNS}
    aa, ha, hh, hhcap = (design.name for design in (SPLITWISE_AA, SPLITWISE_HA, SPLITWISE_HH, SPLITWISE_HHCAP))
    a100, h100 = BASELINE_A100.name, BASELINE_H100.name
    rows = [
        _throughputs("equal power, conv: throughput of AA over Baseline-A100", 2.15, found, power[aa], power[a100]),
        _throughputs("equal power, conv: throughput of HA over Baseline-H100", 1.18, found, power[ha], power[h100]),
        Headline(
            "equal power, conv: cost of HA over Baseline-H100",
            0.90,
            _ratio(Objective.COST, power[ha], power[h100]),
            about="a ratio of prices alone: 0.90 comes out where an H100 costs 2.35 A100, 0.93 at list prices (2.15)",
        ),
        _throughputs("equal cost, conv: throughput of AA over Baseline-H100", 1.4, found, cost[aa], cost[h100]),
        Headline(
            "equal cost, conv: power of AA over Baseline-H100",
            1.25,
            _ratio(Objective.POWER, cost[aa], cost[h100]),
            about="a ratio of rated power alone: 86 DGX-A100 beside 40 DGX-H100",
        ),
        Headline(
            "equal cost, conv: machines of AA over Baseline-H100",
            2.0,
            _ratio(Objective.MACHINES, cost[aa], cost[h100]),
            about="a ratio of machines alone: 86 beside 40",
        ),
        _provisioned(
            "equal throughput, conv: power of HHcap over Baseline-H100",
            0.75,
            found,
            HHCAP_POWER,
            SPLITWISE_HHCAP,
            Objective.POWER,
        ),
        _provisioned(
            "equal throughput, conv: cost of AA over Baseline-H100", 0.75, found, AA_COST, SPLITWISE_AA, Objective.COST
        ),
    ]
    best = found.cheapest[HH_CODE].split
    rows += [
        Headline("70 requests/s of code, cheapest HH: prompt machines", 27, None if best is None else best.prompt),
        Headline("70 requests/s of code, cheapest HH: token machines", 3, None if best is None else best.token),
    ]
    for design, kept in ((aa, 1.0), (hh, 1.0), (ha, 0.93), (hhcap, 0.93)):
        moved = Cluster("iso-power", "code", "conv", design)
        name = (
            f"conv on a cluster made for code: throughput of {design.removeprefix('Splitwise-')} over its own cluster's"
        )
        rows.append(_throughputs(name, kept, found, moved, power[design]))
    for design, per_dollar in ((a100, 0.89), (aa, 0.89), (h100, 0.75), (hh, 0.75)):
        rows.append(
            Headline(
                f"batch jobs, conv: requests/s per $ of {design}",
                per_dollar,
                found.saturated[design] / _dollars(power[design]),
                about="$ an hour and GPU of each machine, as in the paper; requests/s under three times the limit",
            )
        )
    return rows


def _throughputs(name: str, paper: float, found: Findings, one: Cluster, other: Cluster) -> Headline:
    mine, its = found.limits[one], found.limits[other]
    ratios = [a / b for a, b in zip(mine.rates, its.rates, strict=True) if b]
    return Headline(
        name,
        paper,
        mine.mean / its.mean if its.mean else None,
        (min(ratios), max(ratios)) if len(ratios) > 1 else None,
        about=f"{_shown(mine)} over {_shown(its)} requests/s",
    )


def _provisioned(
    name: str, paper: float, found: Findings, question: str, design: Design, objective: Objective
) -> Headline:
    split = found.cheapest[question].split
    base = objective.of(BASELINE_H100, PAPER_SPLITS["iso-power", "conv"][BASELINE_H100.name])
    if split is None:
        return Headline(name, paper, None, about="no split in reach serves the rate")
    machines = f"{split.prompt} prompt and {split.token} token machines"
    return Headline(name, paper, objective.of(design, split) / base, about=f"{machines} serve what 40 DGX-H100 serve")


def _ratio(objective: Objective, one: Cluster, other: Cluster) -> float:
    return objective.of(DESIGNS[one.design], one.split) / objective.of(DESIGNS[other.design], other.split)


def _dollars(cluster: Cluster) -> float:
    """Price as the paper's figure has it: of one GPU of each machine."""
    return DESIGNS[cluster.design].price_per_hour(cluster.split) / 8


def _shown(limit: Limit) -> str:
    width = limit.half_width
    return f"{limit.mean:g}" if width is None else f"{limit.mean:.1f} +- {width:.1f}"


def _saturated(scope: Scope, design: Design) -> Search[float]:
    case = scope.case(design, PAPER_SPLITS["iso-power", "conv"][design.name], "conv")
    limit = yield from limit_of(case, scope.grid, scope.seeds[:1])
    rate = _OVERLOAD * max(limit.mean, scope.grid.step)
    (run,) = yield [replace(case, rate=rate)]
    return run.requests_per_s


def _at_throughput_of_h100(scope: Scope, design: Design, objective: Objective, most: Split) -> Search[Provisioned]:
    base = scope.case(BASELINE_H100, PAPER_SPLITS["iso-power", "conv"][BASELINE_H100.name], "conv")
    limit = yield from limit_of(base, scope.grid, scope.seeds)
    rate = max(scope.grid.step, round(limit.mean / scope.grid.step) * scope.grid.step)
    return (yield from cheapest_split(scope.case(design, Split(1, 1), "conv", rate), objective, scope.seeds, most))


def runs_by_design(limits: Mapping[Cluster, Limit], budget: str, workload: str) -> dict[str, Sequence[RunSummary]]:
    """Return the runs of a figure's clusters, by label, for `plot_latencies`."""
    return {
        limit.runs[0].case.label: limit.runs
        for cluster, limit in limits.items()
        if (cluster.budget, cluster.made_for, cluster.asked) == (budget, workload, workload)
    }
