"""Made-up summaries of runs: whether objectives hold is a function of the case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from spotwise.simulator.loads.workload import ClusterWorkload
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.clusters import DESIGNS, Split
from spotwise.simulator.runs.metrics import Verdict
from spotwise.simulator.runs.run_summary import PoolSummary, RunSummary

SLOWDOWN_BOUNDS = {"ttft": (2.0, 3.0, 6.0), "tbt": (1.25, 1.5, 5.0), "e2e": (1.25, 1.5, 5.0)}


def case(design: str = "Splitwise-HH", split: Split | None = None, rate: float | None = 10.0) -> Case:
    """Describe a run; a baseline's default split has prompt machines alone."""
    if split is None:
        split = Split(4) if DESIGNS[design].token is None else Split(3, 1)
    return Case(DESIGNS[design].cluster(split), ClusterWorkload("conv"), rate, seconds=10.0)


def summary(of: Case, *, holds: bool) -> RunSummary:
    """Make up a run in which all objectives hold, or the first one does not."""
    kept = dict.fromkeys(("tbt", "e2e"), ((1.0, 1.25), (1.0, 1.5), (1.0, 5.0)))
    verdict = Verdict({"ttft": ((1.0 if holds else 3.0, 2.0), (1.0, 3.0), (1.0, 6.0))} | kept, failed=0)
    return RunSummary(
        case=of,
        completed=1,
        failed=0,
        first_failure=None,
        ended_s=1.0,
        requests_per_s=1.0,
        output_tokens_per_s=1.0,
        latencies_s={},
        verdict=verdict,
        pools={},
        price_per_hour=1.0,
        spent_usd=1.0,
        power=1.0,
        handoffs=0,
        handoff_bytes=0.0,
        preemptions=0,
        wall_s=0.0,
    )


@dataclass
class Oracle:
    """Answers with a function whether a case holds, and records the cases."""

    holds: Callable[[Case], bool]
    cases: list[Case] = field(default_factory=list)

    def run(self, of: Case) -> RunSummary:
        self.cases.append(of)
        return summary(of, holds=self.holds(of))


def summary_with(design: str, rate: float, slowdown: float, seed: int = 0, split: Split | None = None) -> RunSummary:
    """A run of a design whose nine slowdowns are the same."""
    own = replace(case(design, split, rate), seed=seed)
    verdict = Verdict(
        {metric: tuple((slowdown, bound) for bound in bounds) for metric, bounds in SLOWDOWN_BOUNDS.items()}, 0
    )
    pools = {
        "token": PoolSummary(1, 0.5, 10, 4.0, (1, 8), (0.25, 1.0)),
        "prompt": PoolSummary(1, 0.5, 1, 0.0, (900,), (1.0,)),
    }
    return replace(summary(own, holds=True), verdict=verdict, pools=pools)
