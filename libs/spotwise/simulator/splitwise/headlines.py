"""The paper's headlines as numbers, beside ours.

Law: a headline is a ratio, or a number of machines, of what `splitwise_paper.py` found; nothing in here is tuned to the paper.
Where a figure differs, the reason that is known stands beside it: a simulated one is asked of several models of time, which
differ in one reason or a few.

Source: Patel et al., "Splitwise", ISCA 2024, sections 6.2 to 6.6, figures 12 and 18 to 20.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.runs.designs import (
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
from spotwise.simulator.runs.provisioning import Objective
from spotwise.simulator.runs.search import Limit
from spotwise.simulator.splitwise.paper import AA_COST, HH_CODE, HHCAP_POWER, Cluster, ClusterFindings

#: A difference of less than this says nothing.
_SAME = 0.05
#: Why a figure may differ from the paper's, by the model of time: of the paper's own clusters, and of those that we searched.
_SLOWER = (
    "decodes slow down in larger batches, for which the paper's splits were not made",
    "decodes slow down in larger batches, on the baseline's machines too",
)
_WHY = {
    DecodeModel.PUBLISHED: ("shorter traces with other draws, and rates on a grid",) * 2,
    DecodeModel.BY_BATCH: _SLOWER,
    DecodeModel.HONEST: _SLOWER,
}
#: `placement.py`: KV does not go from one prompt worker to another.
_SPILL = "what a token pool has no memory for is done by one prompt machine here, and by two in the paper's simulator"
_BATCH_JOBS = "the paper does not say how much batch jobs ask for; here three times what keeps the objectives"


@dataclass(frozen=True, slots=True)
class MeasuredFigure:
    """What came out by one model of time.

    Attributes:
        value: ours; `None` where the search found nothing.
        spread: over the seeds; `None` where there is none.
        about: what it rests on.
    """

    value: float | None
    spread: tuple[float, float] | None = None
    about: str = ""


@dataclass(frozen=True, slots=True)
class ClusterHeadline:
    """One sentence of the paper as a number.

    Attributes:
        name: what it is.
        paper: the paper's number.
        measured: ours, by the model of time.
        why: they differ; empty where they do not.
    """

    name: str
    paper: float
    measured: Mapping[DecodeModel, MeasuredFigure]
    why: str = ""

    def differs(self, decode_model: DecodeModel) -> bool:
        """Whether ours is not the paper's, by more than a grid of rates can bring about by itself."""
        return _differs(self.paper, self.measured[decode_model].value)


@dataclass(frozen=True, slots=True)
class _Row:
    """A headline by one model of time.

    Attributes:
        published: why it differs with the published times, where more is known than the general reason.
        fixed: why it differs whatever the model of time; `None` where that matters.
        is_provisioned: of clusters whose machines were searched, and not given by the paper.
    """

    name: str
    paper: float
    measured: MeasuredFigure
    published: str | None = None
    fixed: str | None = None
    is_provisioned: bool = False


def headlines(found: Mapping[DecodeModel, ClusterFindings]) -> list[ClusterHeadline]:
    """Put what was found by each model of time beside what the paper says, with the reasons that are known."""
    rows = [dict(zip(found, same, strict=True)) for same in zip(*map(_rows, found.values()), strict=True)]
    return [_headline(row) for row in rows]


def _headline(rows: Mapping[DecodeModel, _Row]) -> ClusterHeadline:
    first = next(iter(rows.values()))
    whys: dict[str, list[str]] = {}
    for decode_model, row in rows.items():
        if _differs(row.paper, row.measured.value):
            whys.setdefault(_why(decode_model, row), []).append(decode_model.value)
    said = [why if first.fixed is not None else f"{', '.join(models)}: {why}" for why, models in whys.items()]
    return ClusterHeadline(
        first.name, first.paper, {model: row.measured for model, row in rows.items()}, "; ".join(said)
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
    power = {design: Cluster("iso-power", "conv", "conv", design) for design in DESIGNS}
    cost = {design: Cluster("iso-cost", "conv", "conv", design) for design in DESIGNS}
    aa, ha, hh, hhcap = (design.name for design in (SPLITWISE_AA, SPLITWISE_HA, SPLITWISE_HH, SPLITWISE_HHCAP))
    a100, h100 = BASELINE_A100.name, BASELINE_H100.name
    best = found.cheapest[HH_CODE].split
    rows = [
        _throughputs("equal power, conv: throughput of AA over Baseline-A100", 2.15, found, power[aa], power[a100]),
        _throughputs(
            "equal power, conv: throughput of HA over Baseline-H100",
            1.18,
            found,
            power[ha],
            power[h100],
            _replayed(1.27),
        ),
        _ratio(
            "equal power, conv: cost of HA over Baseline-H100",
            0.90,
            Objective.COST,
            (power[ha], power[h100]),
            "a ratio of prices alone: 0.90 comes out where an H100 costs 2.35 A100, 0.93 at list prices (2.15)",
        ),
        _throughputs(
            "equal cost, conv: throughput of AA over Baseline-H100", 1.4, found, cost[aa], cost[h100], _replayed(1.18)
        ),
        _ratio(
            "equal cost, conv: power of AA over Baseline-H100",
            1.25,
            Objective.POWER,
            (cost[aa], cost[h100]),
            "a ratio of rated power alone: 86 DGX-A100 beside 40 DGX-H100",
        ),
        _ratio(
            "equal cost, conv: machines of AA over Baseline-H100",
            2.0,
            Objective.MACHINES,
            (cost[aa], cost[h100]),
            "a ratio of machines alone: 86 beside 40",
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
        _machines("70 requests/s of code, cheapest HH: prompt machines", 27, None if best is None else best.prompt),
        _machines("70 requests/s of code, cheapest HH: token machines", 3, None if best is None else best.token),
    ]
    for design, kept in ((aa, 1.0), (hh, 1.0), (ha, 0.93), (hhcap, 0.93)):
        moved = Cluster("iso-power", "code", "conv", design)
        name = (
            f"conv on a cluster made for code: throughput of {design.removeprefix('Splitwise-')} over its own cluster's"
        )
        rows.append(_throughputs(name, kept, found, moved, power[design], _SPILL))
    for design, per_dollar in ((a100, 0.89), (aa, 0.89), (h100, 0.75), (hh, 0.75)):
        name = f"batch jobs, conv: requests/s per $ of {design}"
        about = "$ an hour and GPU of each machine, as in the paper; requests/s under three times the limit"
        measured = MeasuredFigure(found.saturated[design] / _dollars(power[design]), about=about)
        rows.append(_Row(name, per_dollar, measured, _BATCH_JOBS))
    rows += [
        _most(
            "abstract, of no named design, conv: most throughput at equal power over Baseline-A100",
            2.35,
            found,
            power,
            a100,
        ),
        _most(
            "conclusion, of no named design, conv: most throughput at equal cost over Baseline-H100",
            1.76,
            found,
            cost,
            h100,
        ),
    ]
    return rows


def _replayed(ratio: float) -> str:
    """What came out when the published simulator was run again: the ratio of the limits in its 184 runs."""
    return f"the paper's own simulator gives {ratio:.2f} on traces of two minutes"


def _throughputs(
    name: str, paper: float, found: ClusterFindings, one: Cluster, other: Cluster, published: str | None = None
) -> _Row:
    mine, its = found.limits[one], found.limits[other]
    about = f"{_shown(mine)} over {_shown(its)} requests/s"
    if not its.mean:
        return _Row(name, paper, MeasuredFigure(None, about=f"{other.design} carries nothing"), published)
    ratios = [a / b for a, b in zip(mine.rates, its.rates, strict=True) if b]
    spread = (min(ratios), max(ratios)) if len(ratios) > 1 else None
    return _Row(name, paper, MeasuredFigure(mine.mean / its.mean, spread, about), published)


def _most(name: str, paper: float, found: ClusterFindings, budget: Mapping[str, Cluster], baseline: str) -> _Row:
    """The design with the highest limit, over a baseline of the same budget."""
    best = max(budget.values(), key=lambda cluster: found.limits[cluster].mean)
    row = _throughputs(name, paper, found, best, budget[baseline])
    return replace(row, measured=replace(row.measured, about=f"{best.design}: {row.measured.about}"))


def _provisioned(
    name: str, paper: float, found: ClusterFindings, question: str, design: Design, objective: Objective
) -> _Row:
    split = found.cheapest[question].split
    if split is None:
        return _Row(name, paper, MeasuredFigure(None, about="no split in reach serves the rate"), is_provisioned=True)
    base = objective.of(BASELINE_H100, PAPER_SPLITS["iso-power", "conv"][BASELINE_H100.name])
    about = f"{split.prompt} prompt and {split.token} token machines serve what 40 DGX-H100 serve"
    return _Row(name, paper, MeasuredFigure(objective.of(design, split) / base, about=about), is_provisioned=True)


def _machines(name: str, paper: float, machines: int | None) -> _Row:
    about = "no split in reach serves the rate" if machines is None else ""
    return _Row(name, paper, MeasuredFigure(machines, about=about), is_provisioned=True)


def _ratio(name: str, paper: float, objective: Objective, clusters: tuple[Cluster, Cluster], fixed: str) -> _Row:
    """Arithmetic on prices and machines: no simulation is behind it."""
    one, other = (objective.of(DESIGNS[cluster.design], cluster.split) for cluster in clusters)
    return _Row(name, paper, MeasuredFigure(one / other), fixed=fixed)


def _dollars(cluster: Cluster) -> float:
    """Price as the paper's figure has it: of one GPU of each machine."""
    return DESIGNS[cluster.design].price_per_hour(cluster.split) / 8


def _shown(limit: Limit) -> str:
    width = limit.half_width
    return f"{limit.mean:g}" if not width else f"{limit.mean:.1f} +- {width:.1f}"
