"""A run of `spotwise bench spot` beside the simulated world: the same trace, load, fleet file and policy.

What the simulation takes from the run are three times: from an instance's purchase until it runs; of a new group's forming, but
for its weights; and of a request's move. All else is as predicted: what iterations take by the file's profile, weights at the
planner's 1 GB/s, and what is bought, lost and chosen when.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from spotwise.benchmarks.spot_run import FIRST_TOKENS, SpotRunResult
from spotwise.cli.bench.report import ReportRow, Target
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.percentile import percentile
from spotwise.core.planner.change_cost import STORAGE_BYTES_PER_S
from spotwise.core.planner.group_choice import written
from spotwise.files.spot_traces import SpotTrace
from spotwise.simulator.spotserve.arrivals import SpotArrivals
from spotwise.simulator.spotserve.own_fleet import COMPARED, RequestSize, own_model
from spotwise.simulator.spotserve.pricing import PurchaseTerms
from spotwise.simulator.spotserve.run import SpotOutcome, SpotRun
from spotwise.simulator.spotserve.serving import serve
from spotwise.simulator.spotserve.systems import SpotSurroundings

#: Bytes a second within an instance, whose devices read and receive at the planner's rate.
_AT_ONCE = 1e15
_WITHIN = Target(at_most=1.15, at_least=0.85)


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The simulated world's answer to a run."""

    outcome: SpotOutcome
    began_s: float

    @property
    def latencies_s(self) -> list[float]:
        """E2E seconds of the load's requests, ascending."""
        return sorted(each.latency_s for each in self.outcome.requests if each.arrived_s >= self.began_s)


def simulate_run(
    run: SpotRunResult,
    prompts: Sequence[list[int]],
    trace: SpotTrace,
    compress: float,
    grace_s: float,
    terms: PurchaseTerms,
    model: ModelShape,
) -> SimulatedRun:
    """Simulate what a live run was given. Raises `ValueError` where the profile is of another model."""
    load = sorted((each.request for each in run.answers), key=lambda each: each.at_s)
    sizes = tuple((len(prompts[each.prompt]), each.tokens) for each in load)
    usual = RequestSize(*(round(statistics.fmean(column)) for column in zip(*sizes, strict=True)))
    arrivals = SpotArrivals(
        "load",
        (max(0.0, run.first_s), *(run.trace_s + each.at_s for each in load)),
        usual.input_tokens,
        usual.output_tokens,
        ((len(prompts[0]), FIRST_TOKENS), *sizes),
    )
    moves_s = [each.move_s for each in run.answers if each.moves]
    around = SpotSurroundings(
        grace_s=grace_s,
        switch_s=run.joining_s,
        move_s=statistics.median(moves_s) if moves_s else 0.0,
        network_bytes_per_s=STORAGE_BYTES_PER_S,
        local_bytes_per_s=_AT_ONCE,
        storage_bytes_per_s=STORAGE_BYTES_PER_S,
    )
    market = replace(terms, kind=replace(terms.kind, start_s=run.starting_s or terms.kind.start_s))
    measured = terms.kind.measured
    links = replace(
        around, network_bytes_per_s=measured.network_bytes_per_s, local_bytes_per_s=measured.local_bytes_per_s
    )
    served = own_model(
        measured.profile, model, usual, links, devices=measured.devices, device_bytes=measured.device_bytes
    )
    system = COMPARED["spotwise"]
    return SimulatedRun(
        serve(SpotRun(_real_seconds(trace, compress), arrivals, served, system, around, market=market)), run.trace_s
    )


def agreement_rows(run: SpotRunResult, simulated: SimulatedRun) -> list[ReportRow]:
    """Return how the simulated world's figures stand to the live run's."""
    live = sorted(each.latency_s for each in run.answers if not each.failure) or [0.0]
    theirs = simulated.latencies_s or [0.0]
    rows = [
        ReportRow(f"simulated p{percent}, s", percentile(theirs, percent), percentile(live, percent), target)
        for percent, target in ((50, _WITHIN), (90, None), (99, _WITHIN))
    ]
    return [
        *rows,
        ReportRow("simulated dollars", _spent(simulated, run), run.spent),
        ReportRow("share of the time in which both chose the same configuration", agreeing_share(run, simulated)),
    ]


def agreeing_share(run: SpotRunResult, simulated: SimulatedRun) -> float:
    """Return in which share of the load's time the live planner and the simulated one had chosen the same configuration."""
    same_s = 0.0
    for sample, after in pairwise(run.samples):
        chosen = _at(simulated.outcome.chosen, simulated.began_s + sample.at_s)
        same_s += (after.at_s - sample.at_s) * (sample.chosen == chosen)
    return same_s / (run.samples[-1].at_s - run.samples[0].at_s) if len(run.samples) > 1 else 0.0


def _at(chosen: Sequence[tuple[float, ParallelConfig | None]], at_s: float) -> str:
    config = next((config for from_s, config in reversed(chosen) if from_s <= at_s), None)
    return "" if config is None else written(config)


def _spent(simulated: SimulatedRun, run: SpotRunResult) -> float:
    """Dollars from the load's beginning on."""
    outcome = simulated.outcome
    paid_s = sum(life.seconds() for life in outcome.lives)
    before_s = sum(life.seconds(simulated.began_s) for life in outcome.lives)
    return (outcome.spent or 0.0) * (1 - before_s / paid_s) if paid_s else 0.0


def _real_seconds(trace: SpotTrace, compress: float) -> SpotTrace:
    events = tuple(
        replace(
            each,
            time_s=each.time_s / compress,
            notice_s=None if each.notice_s is None else each.notice_s / compress,
        )
        for each in trace.events
    )
    return SpotTrace(trace.name, events)
