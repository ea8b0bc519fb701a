"""Runs a system on spot instances; the same case gives the same figures in every process. Latency counts for every request,
arrival to last token (SpotServe, section 6.1); the artifact's count of requests answered before the trace's end is beside
it. Goodput: requests answered within a deadline, per dollar."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from spotwise.core.messages.fleet import Market
from spotwise.core.parallel.memory import LeastDevices
from spotwise.files.spot_traces import SpotEvent, SpotEventKind, SpotTrace, read_spot_trace
from spotwise.simulator.runs.run_summary import is_steady
from spotwise.simulator.spotserve.arrivals import SpotArrivals
from spotwise.simulator.spotserve.run import SpotOutcome, SpotRun
from spotwise.simulator.spotserve.serving import figures_of, serve
from spotwise.simulator.spotserve.systems import SpotModel, SpotSurroundings, SpotSystem
from spotwise.studies.spotserve.arrivals import changing_arrivals, gamma_spot_arrivals, read_rates, read_spot_arrivals
from spotwise.studies.spotserve.golden import MAX_BATCH
from spotwise.studies.spotserve.profiles import (
    DEVICES_OF_AN_INSTANCE,
    ON_DEMAND_PER_H,
    PAPER_MODELS,
    SPOT_PER_H,
    read_model_tables,
)

#: Deadline of a request, over its latency alone.
DEADLINE_FACTOR = 3.0
#: Bounds of the latency histogram: seconds, each 1.25 times the one before.
HISTOGRAM_S = tuple(round(1.25**step, 3) for step in range(41))
_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Availability:
    """Which instances are available when.

    Attributes:
        file: name of a trace's file in the data's folder; `None` for a fixed fleet.
        fixed_nodes, fixed_s: size of a fixed fleet, and seconds it is measured.
        from_s, until_s: part of the trace; `None` to its end.
    """

    file: str | None = None
    fixed_nodes: int = 0
    fixed_s: float = 0.0
    from_s: float = 0.0
    until_s: float | None = None

    @property
    def name(self) -> str:
        """A description for people."""
        return f"{self.fixed_nodes} that stay" if self.file is None else Path(self.file).stem

    @property
    def nodes_that_stay(self) -> tuple[str, ...]:
        """On-demand instances of a fixed fleet."""
        return tuple(f"node-{number}" for number in range(self.fixed_nodes))

    def trace(self, data: Path) -> SpotTrace:
        """Return the trace; raises TraceError if the file cannot be read."""
        if self.file is None:
            events = (
                SpotEvent(0.0, SpotEventKind.ADD, self.nodes_that_stay),
                SpotEvent(self.fixed_s, SpotEventKind.DONE),
            )
            return SpotTrace(self.name, events)
        trace = read_spot_trace(data / self.file)
        if self.from_s == 0.0 and self.until_s is None:
            return trace
        return trace.part(self.from_s, min(trace.end_s, self.until_s or trace.end_s))


@dataclass(frozen=True, slots=True)
class Load:
    """The arrival process.

    Attributes:
        file: the artifact's list of requests; `None` draws them.
        rate: requests a second, drawn.
        rates_file: rates of each minute, instead of `rate`.
        cv: coefficient of variation of the gaps.
    """

    file: str | None = None
    rate: float = 0.0
    rates_file: str | None = None
    cv: float = 1.0
    seed: int = 0

    def arrivals(self, data: Path, end_s: float) -> SpotArrivals:
        """Return the requests that arrive before a time; raises TraceError if a file cannot be read."""
        folder = data / "spotserve" / "arrivals"
        if self.file is not None:
            return read_spot_arrivals(folder / self.file).until(end_s)
        rng = np.random.default_rng(self.seed)
        if self.rates_file is not None:
            rates = read_rates(folder / self.rates_file)
            return changing_arrivals([(at * _MINUTE_S, rate) for at, rate in enumerate(rates)], self.cv, end_s, rng)
        return gamma_spot_arrivals(self.rate, self.cv, end_s, rng)


@dataclass(frozen=True, slots=True)
class SpotCase:
    """Everything that a run depends on.

    Attributes:
        data: folder with `spotserve/` and `bamboo/`.
        model: name of one of `PAPER_MODELS`.
        required_rate: requests a second to serve, until the trace sets another; `None` measures the rate.
    """

    data: Path
    model: str
    availability: Availability
    load: Load
    system: SpotSystem
    required_rate: float | None = None
    surroundings: SpotSurroundings = field(default_factory=SpotSurroundings)

    @property
    def files(self) -> tuple[Path | None, ...]:
        """Files that the run reads."""
        trace, arrivals = self.availability.file, self.load.file or self.load.rates_file
        return (
            None if trace is None else self.data / trace,
            None if arrivals is None else self.data / "spotserve" / "arrivals" / arrivals,
            self.data / "spotserve" / "profiles" / PAPER_MODELS[self.model].profile,
        )


@dataclass(frozen=True, slots=True)
class SpotSummary:
    """Figures of a run.

    Attributes:
        requests: all that arrived; `unanswered` of them were not answered when the run ended, for the reason `why_unanswered`.
        latency_s: latencies of the answered requests, by figure (`mean`, `p50`, `p90`, `p99`, `max`); empty without any.
        counted, counted_latency_s: requests that the artifact would count, and their latency by figure.
        in_time: requests answered within `deadline_s`.
        deadline_s: `DEADLINE_FACTOR` times the latency alone.
        interrupted: requests whose batch a reconfiguration stopped.
        changes: reconfigurations after the first configuration: time, configuration, and seconds of pause of some pipeline.
        moved_bytes, storage_bytes: moved between devices and loaded from storage, for all reconfigurations.
        spot_s, on_demand_s, cost_usd: instance seconds until the trace's end, and their price.
        histogram: answered requests up to each bound of `HISTOGRAM_S`, and beyond the last.
        wall_s: real seconds; the only figure that varies between runs of a case.
    """

    case: SpotCase
    requests: int
    latency_s: Mapping[str, float]
    counted: int
    counted_latency_s: Mapping[str, float]
    in_time: int
    deadline_s: float
    interrupted: int
    recomputed_tokens: int
    changes: tuple[tuple[float, str, float], ...]
    moved_bytes: int
    storage_bytes: int
    trace_s: float
    spot_s: float
    on_demand_s: float
    cost_usd: float
    histogram: tuple[int, ...]
    wall_s: float = field(compare=False)
    unanswered: int = 0
    why_unanswered: str = ""

    @property
    def is_steady(self) -> bool:
        """Whether it reached a steady state; not where requests are left unanswered."""
        return not self.unanswered and is_steady(self.latency_s.get("mean"), self.trace_s)

    @property
    def goodput_per_dollar(self) -> float | None:
        """Requests in time per dollar; `None` where nothing was paid."""
        return self.in_time / self.cost_usd if self.cost_usd > 0 else None


def simulate_spot(case: SpotCase) -> SpotSummary:
    """Run a case until its last request is answered, or none can be any more; raises TraceError if a file cannot be read."""
    trace = case.availability.trace(case.data)
    paper_model = PAPER_MODELS[case.model]
    run = SpotRun(
        trace,
        case.load.arrivals(case.data, trace.end_s),
        _served(case.data, case.model),
        case.system,
        case.surroundings,
        case.required_rate,
        on_demand_nodes=case.availability.nodes_that_stay,
    )
    began_s = time.perf_counter()
    outcome = serve(run)
    wall_s = time.perf_counter() - began_s
    return _summary(case, outcome, DEADLINE_FACTOR * paper_model.alone.seconds, wall_s)


@cache
def _served(data: Path, model: str) -> SpotModel:
    paper_model = PAPER_MODELS[model]
    tables = read_model_tables(data / "spotserve", paper_model)
    return SpotModel(
        paper_model.shape,
        tables,
        LeastDevices(paper_model.least_devices),
        max_batch=MAX_BATCH,
        devices=DEVICES_OF_AN_INSTANCE,
    )


def _summary(case: SpotCase, outcome: SpotOutcome, deadline_s: float, wall_s: float) -> SpotSummary:
    latencies = np.array(outcome.latencies_s)
    counted = outcome.finished_in_trace()
    below = np.searchsorted(np.sort(latencies), HISTOGRAM_S, side="right")
    return SpotSummary(
        case,
        len(latencies) + len(outcome.unfinished),
        figures_of(outcome.latencies_s),
        len(counted),
        figures_of([request.latency_s for request in counted]),
        int((latencies <= deadline_s).sum()),
        deadline_s,
        outcome.interrupted_requests,
        outcome.recomputed_tokens,
        tuple((change.time_s, str(change.config or "none"), change.pause_s) for change in outcome.changes[1:]),
        sum(change.moved_bytes for change in outcome.changes),
        sum(change.storage_bytes for change in outcome.changes[1:]),
        outcome.trace_end_s,
        outcome.instance_s(Market.SPOT, outcome.trace_end_s),
        outcome.instance_s(Market.ON_DEMAND, outcome.trace_end_s),
        outcome.cost(SPOT_PER_H, ON_DEMAND_PER_H, outcome.trace_end_s),
        tuple(int(count) for count in np.diff([0, *below, len(latencies)])),
        wall_s,
        len(outcome.unfinished),
        outcome.why_unfinished,
    )
