"""The paper's headlines as numbers, beside ours.

Law: a headline is a ratio, or a number of machines, of what `splitwise_paper.py` found; nothing in here is tuned to the paper.
Where a simulated figure differs, the reason that is known stands beside it, with what to run to see it.

Source: Patel et al., "Splitwise", ISCA 2024, sections 6.2 to 6.6, figures 12 and 18 to 20.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
)
from spotwise.simulator.machine_costs import DecodeModel
from spotwise.simulator.provisioning import Objective
from spotwise.simulator.search import Limit
from spotwise.simulator.splitwise_paper import AA_COST, HH_CODE, HHCAP_POWER, Cluster, Findings

#: A difference of less than this says nothing.
_SAME = 0.05
#: Why figures may differ from the paper's; each can be checked by running with another model of time.
_WHY = {
    DecodeModel.HONEST: "decodes take longer in larger batches and behind longer contexts, which the paper's times do not "
    "show (compare --decode-model published)",
    DecodeModel.BY_BATCH: "decodes take longer in larger batches, which the paper's times do not show (compare "
    "--decode-model published)",
    DecodeModel.PUBLISHED: "times are the paper's; schedulers, shorter traces and other draws are not",
}


@dataclass(frozen=True, slots=True)
class Headline:
    """One sentence of the paper as a number.

    Attributes:
        name: what it is.
        paper: the paper's number.
        ours: ours; `None` where the search found nothing.
        spread: of ours, over the seeds; `None` where there is none.
        about: what it rests on, and why it differs.
        is_simulated: whether a simulation is behind it; otherwise it is arithmetic on prices and machines.
    """

    name: str
    paper: float
    ours: float | None
    spread: tuple[float, float] | None = None
    about: str = ""
    is_simulated: bool = True

    @property
    def differs(self) -> bool:
        """Whether ours is not the paper's, by more than a grid of rates can bring about by itself."""
        return self.ours is None or abs(self.ours / self.paper - 1) > _SAME


def headlines(found: Findings, decode_model: DecodeModel) -> list[Headline]:
    """Put what was found beside what the paper says; a simulated figure that differs is given the reason that is known."""
    return [
        replace(row, about=f"{row.about}; {_WHY[decode_model]}" if row.about else _WHY[decode_model])
        if row.is_simulated and row.differs
        else row
        for row in _headlines(found)
    ]


def _headlines(found: Findings) -> list[Headline]:
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
            is_simulated=False,
        ),
        _throughputs("equal cost, conv: throughput of AA over Baseline-H100", 1.4, found, cost[aa], cost[h100]),
        Headline(
            "equal cost, conv: power of AA over Baseline-H100",
            1.25,
            _ratio(Objective.POWER, cost[aa], cost[h100]),
            about="a ratio of rated power alone: 86 DGX-A100 beside 40 DGX-H100",
            is_simulated=False,
        ),
        Headline(
            "equal cost, conv: machines of AA over Baseline-H100",
            2.0,
            _ratio(Objective.MACHINES, cost[aa], cost[h100]),
            about="a ratio of machines alone: 86 beside 40",
            is_simulated=False,
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
    return f"{limit.mean:g}" if not width else f"{limit.mean:.1f} +- {width:.1f}"
