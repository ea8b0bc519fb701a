"""One run of a system on preemptible machines, from what describes it.

Law: a case has everything that a run depends on; the same case gives the same figures, in whatever process. Every request
counts with its whole latency, from arrival to last token, and the run goes on until all are answered. Beside it stands what the
artifact counts: only requests that were answered before the trace ended, which leaves out the slowest.

Source: latency as SpotServe has it, section 6.1; goodput: requests that are answered within a deadline, for each dollar.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from spotwise.simulator.runs.traces import TraceError
from spotwise.simulator.spotserve.arrivals import (
    SpotArrivals,
    changing_arrivals,
    gamma_spot_arrivals,
    read_rates,
    read_spot_arrivals,
)
from spotwise.simulator.spotserve.fleet import SpotMarket
from spotwise.simulator.spotserve.golden import MAX_BATCH
from spotwise.simulator.spotserve.profiles import (
    DEVICES_OF_AN_INSTANCE,
    ON_DEMAND_PER_H,
    PAPER_MODELS,
    SPOT_PER_H,
    read_model_tables,
)
from spotwise.simulator.spotserve.run import SpotOutcome, SpotRun
from spotwise.simulator.spotserve.serving import serve
from spotwise.simulator.spotserve.systems import SpotModel, SpotSurroundings, SpotSystem
from spotwise.simulator.spotserve.traces import SpotEvent, SpotEventKind, SpotTrace, read_spot_trace

#: A request is in time within so many times what it takes alone.
DEADLINE_FACTOR = 3.0
PERCENTS = (50, 90, 99)
#: Bounds of the histogram of latencies: seconds, each 1.25 times the one before.
HISTOGRAM_S = tuple(round(1.25**step, 3) for step in range(41))
_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Availability:
    """Who is there when.

    Attributes:
        file: of a trace, in the data's folder; `None` for a fleet that stays.
        fixed_nodes: of a fleet that stays.
        fixed_s: how long that is looked at.
        from_s: where the trace is begun.
        until_s: where it is cut; `None`: not.
    """

    file: str | None = None
    fixed_nodes: int = 0
    fixed_s: float = 0.0
    from_s: float = 0.0
    until_s: float | None = None

    @property
    def name(self) -> str:
        """What it is, for people."""
        return f"{self.fixed_nodes} that stay" if self.file is None else Path(self.file).stem

    @property
    def nodes_that_stay(self) -> tuple[str, ...]:
        """Who is bought on demand: a fleet that stays."""
        return tuple(f"node-{number}" for number in range(self.fixed_nodes))

    def trace(self, data: Path) -> SpotTrace:
        """Return the trace.

        Raises:
            TraceError: the file cannot be read.
        """
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
    """Which requests come.

    Attributes:
        file: the artifact's list of them; `None` draws them.
        rate: requests a second of those that are drawn.
        rates_file: rates of each minute, instead of `rate`.
        cv: of the gaps.
        seed: of what is drawn.
    """

    file: str | None = None
    rate: float = 0.0
    rates_file: str | None = None
    cv: float = 1.0
    seed: int = 0

    def arrivals(self, data: Path, end_s: float) -> SpotArrivals:
        """Return the requests that come before a time.

        Raises:
            TraceError: a file cannot be read.
        """
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
    """A run to be.

    Attributes:
        data: folder with `spotserve/` and `bamboo/`.
        model: name of one of `PAPER_MODELS`.
        availability: of machines.
        load: of requests.
        system: what serves.
        required_rate: requests a second that the system is told to serve, until the trace says another; `None` lets it
            measure.
        surroundings: what it runs on.
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
        """What it reads."""
        trace, arrivals = self.availability.file, self.load.file or self.load.rates_file
        return (
            None if trace is None else self.data / trace,
            None if arrivals is None else self.data / "spotserve" / "arrivals" / arrivals,
            self.data / "spotserve" / "profiles" / PAPER_MODELS[self.model].profile,
        )


@dataclass(frozen=True, slots=True)
class SpotSummary:
    """What came out of a case.

    Attributes:
        requests: that came.
        latency_s: of all of them, by figure (`mean`, `p50`, `p90`, `p99`, `max`); without any request none.
        counted: requests that the artifact would count.
        counted_latency_s: of those, by figure.
        in_time: requests answered within `deadline_s`.
        deadline_s: `DEADLINE_FACTOR` times what one takes alone.
        interrupted: requests whose batch was stopped by a change.
        recomputed_tokens: computed more than once.
        changes: of configurations, the first not counted: when, which, and for how long some pipeline stood.
        moved_bytes: between devices, for all changes.
        storage_bytes: loaded anew.
        trace_s: how long the trace lasts.
        spot_s, on_demand_s: of instances, until it ended.
        cost_usd: of those.
        histogram: requests up to each bound of `HISTOGRAM_S`, and beyond the last.
        wall_s: real seconds that the run took; the one figure that is not the same again.
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

    @property
    def goodput_per_dollar(self) -> float | None:
        """Requests in time for each dollar; `None` where nothing was paid."""
        return self.in_time / self.cost_usd if self.cost_usd > 0 else None


def simulate_spot(case: SpotCase) -> SpotSummary:
    """Run a case to the answer of its last request.

    Raises:
        TraceError: a file cannot be read, or the machines that stay cannot serve the model.
    """
    trace = case.availability.trace(case.data)
    paper_model = PAPER_MODELS[case.model]
    at_end, shape = trace.counts()[-1][1], case.system.shape
    needed = max(paper_model.least_devices, 0 if shape is None else shape.pipeline_devices)
    if at_end * DEVICES_OF_AN_INSTANCE < needed:
        raise TraceError(
            f"{trace.name} ends with {at_end} instances; {case.model} needs {needed} devices for what waits then"
        )
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
        paper_model.shape, tables, paper_model.least_devices, max_batch=MAX_BATCH, devices=DEVICES_OF_AN_INSTANCE
    )


def _summary(case: SpotCase, outcome: SpotOutcome, deadline_s: float, wall_s: float) -> SpotSummary:
    latencies = np.array(outcome.latencies_s)
    counted = outcome.finished_in_trace()
    below = np.searchsorted(np.sort(latencies), HISTOGRAM_S, side="right")
    return SpotSummary(
        case,
        len(latencies),
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
        outcome.instance_s(SpotMarket.SPOT, outcome.trace_end_s),
        outcome.instance_s(SpotMarket.ON_DEMAND, outcome.trace_end_s),
        outcome.cost(SPOT_PER_H, ON_DEMAND_PER_H, outcome.trace_end_s),
        tuple(int(count) for count in np.diff([0, *below, len(latencies)])),
        wall_s,
    )


def figures_of(latencies_s: Sequence[float]) -> dict[str, float]:
    """Return mean, percentiles and the longest by name; nothing of nothing."""
    if not latencies_s:
        return {}
    percentiles = np.percentile(latencies_s, PERCENTS).tolist()
    names = [f"p{percent}" for percent in PERCENTS]
    return {"mean": float(np.mean(latencies_s)), **dict(zip(names, percentiles, strict=True)), "max": max(latencies_s)}
