"""The Splitwise paper's headlines as numbers beside ours, untuned (Patel et al., "Splitwise", ISCA 2024, sections 6.2 to 6.6,
figures 12 and 18 to 20): ratios, or numbers of machines, from the searches of `paper.py`. Each differing figure has its
known reason; decode models differ in one reason or a few."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.runs.clusters import (
    BASELINE_A100,
    BASELINE_H100,
    DESIGNS,
    PAPER_SPLITS,
    SPLITWISE_AA,
    SPLITWISE_HA,
    SPLITWISE_HH,
    SPLITWISE_HHCAP,
    Design,
)
from spotwise.simulator.searches.provisioning import Objective
from spotwise.simulator.searches.search import Limit
from spotwise.studies.splitwise.paper import AA_COST, HH_CODE, HHCAP_POWER, ClusterFindings, PaperCluster
from spotwise.studies.study import ends

#: A smaller share is within the resolution of a grid of rates.
_SAME = 0.05
_SLOWER = (
    "decodes slow down in larger batches, for which the paper's splits were not made",
    "decodes slow down in larger batches, on the baseline's machines too",
)
#: Why a figure may differ, by decode model: of the paper's own clusters, and of provisioned ones.
_WHY = {
    DecodeModel.PUBLISHED: ("shorter traces with other draws, and rates on a grid",) * 2,
    DecodeModel.BY_BATCH: _SLOWER,
    DecodeModel.HONEST: _SLOWER,
}
#: KV does not move between prompt workers here (`core/scheduler/placement.py`).
_SPILL = "what a token pool has no memory for is done by one prompt machine here, and by two in the paper's simulator"
_BATCH_JOBS = "the paper does not give the load of batch jobs; here three times what keeps the objectives"


@dataclass(frozen=True, slots=True)
class MeasuredFigure:
    """Our figure by one decode model.

    Attributes:
        value: `None` where the search found nothing.
        spread: lowest and highest over the seeds; `None` with one seed.
        about: the figures behind it.
    """

    value: float | None
    spread: tuple[float, float] | None = None
    about: str = ""


@dataclass(frozen=True, slots=True)
class ClusterHeadline:
    """One sentence of the paper as a number, ours by decode model, and why they differ (empty where they do not)."""

    name: str
    paper: float
    measured: Mapping[DecodeModel, MeasuredFigure]
    why: str = ""

    def differs(self, decode_model: DecodeModel) -> bool:
        """Return whether ours differs from the paper's by more than the grid of rates explains."""
        return _differs(self.paper, self.measured[decode_model].value)


@dataclass(frozen=True, slots=True)
class _Row:
    """A headline by one decode model.

    Attributes:
        published: the reason with published times, where it is known.
        fixed: the reason with every decode model; `None` where the decode model matters.
        is_provisioned: the cluster's machines were searched.
    """

    name: str
    paper: float
    measured: MeasuredFigure
    published: str | None = None
    fixed: str | None = None
    is_provisioned: bool = False


def headlines(found: Mapping[DecodeModel, ClusterFindings]) -> list[ClusterHeadline]:
    """Put the findings of each decode model beside the paper's numbers, with the known reasons for differences."""
    rows = [dict(zip(found, same, strict=True)) for same in zip(*map(_rows, found.values()), strict=True)]
    return [_headline(row) for row in rows]


def _headline(rows: Mapping[DecodeModel, _Row]) -> ClusterHeadline:
    first = next(iter(rows.values()))
    whys: dict[str, list[str]] = {}
    for decode_model, row in rows.items():
        if _differs(row.paper, row.measured.value):
            whys.setdefault(_why(decode_model, row), []).append(decode_model.value)
    reasons = [why if first.fixed is not None else f"{', '.join(models)}: {why}" for why, models in whys.items()]
    return ClusterHeadline(
        first.name, first.paper, {model: row.measured for model, row in rows.items()}, "; ".join(reasons)
    )


def _why(decode_model: DecodeModel, row: _Row) -> str:
    if row.fixed is not None:
        return row.fixed
    if row.measured.value is None:
        return row.measured.about
    if decode_model is DecodeModel.PUBLISHED and row.published is not None:
        return row.published
    return _WHY[decode_model][row.is_provisioned]


def _differs(paper: float, ours: float | None) -> bool:
    return ours is None or abs(ours / paper - 1) > _SAME


def _rows(found: ClusterFindings) -> list[_Row]:
    power = {design: PaperCluster("iso-power", "conv", "conv", design) for design in DESIGNS}
    cost = {design: PaperCluster("iso-cost", "conv", "conv", design) for design in DESIGNS}
    aa, ha, hh, hhcap = (design.name for design in (SPLITWISE_AA, SPLITWISE_HA, SPLITWISE_HH, SPLITWISE_HHCAP))
    a100, h100 = BASELINE_A100.name, BASELINE_H100.name
    best = found.cheapest[HH_CODE].split

    def throughputs(
        name: str, paper: float, one: PaperCluster, other: PaperCluster, published: str | None = None
    ) -> _Row:
        return _Row(name, paper, _throughput_ratio(found, one, other), published)

    def costs(name: str, paper: float, objective: Objective, one: PaperCluster, other: PaperCluster, why: str) -> _Row:
        """Compare prices and machines, without a simulation."""
        ours, base = (objective.of(DESIGNS[cluster.design], cluster.split) for cluster in (one, other))
        return _Row(name, paper, MeasuredFigure(ours / base), fixed=why)

    def provisioned(name: str, paper: float, measured: MeasuredFigure) -> _Row:
        return _Row(name, paper, measured, is_provisioned=True)

    prices = "a ratio of prices alone: 0.90 comes out where an H100 costs 2.35 A100, 0.93 at list prices (2.15)"
    rated = "a ratio of rated power alone: 86 DGX-A100 beside 40 DGX-H100"
    counts = "a ratio of machines alone: 86 beside 40"
    h100_at_equal_power, h100_at_equal_cost = power[h100], cost[h100]
    at_power, at_cost, at_throughput = "equal power, conv", "equal cost, conv", "equal throughput, conv"
    over_h100, of_code = "over Baseline-H100", "70 requests/s of code, cheapest HH"
    rows = [
        throughputs(f"{at_power}: throughput of AA over Baseline-A100", 2.15, power[aa], power[a100]),
        throughputs(f"{at_power}: throughput of HA {over_h100}", 1.18, power[ha], h100_at_equal_power, _replayed(1.27)),
        costs(f"{at_power}: cost of HA {over_h100}", 0.90, Objective.COST, power[ha], h100_at_equal_power, prices),
        throughputs(f"{at_cost}: throughput of AA {over_h100}", 1.4, cost[aa], h100_at_equal_cost, _replayed(1.18)),
        costs(f"{at_cost}: power of AA {over_h100}", 1.25, Objective.POWER, cost[aa], h100_at_equal_cost, rated),
        costs(f"{at_cost}: machines of AA {over_h100}", 2.0, Objective.MACHINES, cost[aa], h100_at_equal_cost, counts),
        provisioned(
            f"{at_throughput}: power of HHcap {over_h100}",
            0.75,
            _over_h100(found, HHCAP_POWER, SPLITWISE_HHCAP, Objective.POWER),
        ),
        provisioned(
            f"{at_throughput}: cost of AA {over_h100}", 0.75, _over_h100(found, AA_COST, SPLITWISE_AA, Objective.COST)
        ),
        provisioned(f"{of_code}: prompt machines", 27, _machines(None if best is None else best.prompt)),
        provisioned(f"{of_code}: token machines", 3, _machines(None if best is None else best.token)),
    ]
    for design, kept in ((aa, 1.0), (hh, 1.0), (ha, 0.93), (hhcap, 0.93)):
        moved, short = PaperCluster("iso-power", "code", "conv", design), design.removeprefix("Splitwise-")
        name = f"conv on a cluster made for code: throughput of {short} over its own cluster's"
        rows.append(throughputs(name, kept, moved, power[design], _SPILL))
    for design, per_dollar in ((a100, 0.89), (aa, 0.89), (h100, 0.75), (hh, 0.75)):
        name = f"batch jobs, conv: requests/s per $ of {design}"
        about = "$ an hour and GPU of each machine, as in the paper; requests/s under three times the limit"
        measured = MeasuredFigure(found.saturated[design] / _dollars(power[design]), about=about)
        rows.append(_Row(name, per_dollar, measured, _BATCH_JOBS))
    most = "conv: most throughput at equal"
    rows += [
        _Row(f"abstract, of no named design, {most} power over Baseline-A100", 2.35, _most(found, power, a100)),
        _Row(f"conclusion, of no named design, {most} cost {over_h100}", 1.76, _most(found, cost, h100)),
    ]
    return rows


def _replayed(ratio: float) -> str:
    """The ratio of the limits in the published simulator's 184 runs."""
    return f"the paper's own simulator gives {ratio:.2f} on traces of two minutes"


def _throughput_ratio(found: ClusterFindings, one: PaperCluster, other: PaperCluster) -> MeasuredFigure:
    ours, base = found.limits[one], found.limits[other]
    if not base.mean:
        return MeasuredFigure(None, about=f"{other.design} carries nothing")
    ratios = [a / b for a, b in zip(ours.rates, base.rates, strict=True) if b]
    about = f"{_shown(ours)} over {_shown(base)} requests/s"
    return MeasuredFigure(ours.mean / base.mean, ends(ratios) if len(ratios) > 1 else None, about)


def _most(found: ClusterFindings, budget: Mapping[str, PaperCluster], baseline: str) -> MeasuredFigure:
    best = max(budget.values(), key=lambda cluster: found.limits[cluster].mean)
    measured = _throughput_ratio(found, best, budget[baseline])
    return replace(measured, about=f"{best.design}: {measured.about}")


def _over_h100(found: ClusterFindings, question: str, design: Design, objective: Objective) -> MeasuredFigure:
    split = found.cheapest[question].split
    if split is None:
        return _machines(None)
    base = objective.of(BASELINE_H100, PAPER_SPLITS["iso-power", "conv"][BASELINE_H100.name])
    about = f"{split.prompt} prompt and {split.token} token machines serve what 40 DGX-H100 serve"
    return MeasuredFigure(objective.of(design, split) / base, about=about)


def _machines(count: int | None) -> MeasuredFigure:
    return MeasuredFigure(count, about="no split in reach serves the rate" if count is None else "")


def _dollars(cluster: PaperCluster) -> float:
    """The price is as in the paper's figure: of one GPU of each machine."""
    return DESIGNS[cluster.design].price_per_hour(cluster.split) / 8


def _shown(limit: Limit) -> str:
    width = limit.half_width
    return f"{limit.mean:g}" if not width else f"{limit.mean:.1f} +- {width:.1f}"
