"""The report of `spotwise simulate spot`: what was assumed, a table with a column for each system, the JSON document, and the
fleet over time as a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rich.table import Table

from spotwise.cli.profile_files import LoadBeyond
from spotwise.cli.quantities import bytes_text, seconds_text
from spotwise.core.costs.cost_profile import CostProfile
from spotwise.core.messages.fleet import Market
from spotwise.files.spot_traces import SpotTrace
from spotwise.simulator.runs.plots import bare_grid, legend_below, new_figure
from spotwise.simulator.spotserve.arrivals import SpotArrivals
from spotwise.simulator.spotserve.own_fleet import mean_instances
from spotwise.simulator.spotserve.pricing import FleetPricing, PurchaseTerms
from spotwise.simulator.spotserve.serving import FleetResult
from spotwise.simulator.spotserve.systems import SpotModel, SpotSurroundings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_HOUR_S = 3600.0

#: Okabe and Ito's, by the order of systems.
_COLOURS = ("#0072B2", "#E69F00", "#009E73")
_STYLES = ("-", "--", ":")


@dataclass(frozen=True, slots=True)
class FleetInputs:
    """What all systems were given.

    Attributes:
        machine: the profile.
        pricing: `None` without prices.
        rate: requests a second that were given or assumed; `None` for the load's own.
        least_instances: the fewest of the trace's instances that can serve the model; `None` where all of them cannot.
        market: prices and types of instances that are bought; `None`: all of the trace's are there.
    """

    trace: SpotTrace
    arrivals: SpotArrivals
    model: SpotModel
    machine: CostProfile
    surroundings: SpotSurroundings
    drain_s: float
    pricing: FleetPricing | None
    seed: int
    rate: float | None
    least_instances: int | None
    market: PurchaseTerms | None = None

    @property
    def beyond(self) -> LoadBeyond | None:
        """How far the load goes beyond the profile; `None` where the profile does not say how far it was measured."""
        arrivals, measured = self.arrivals, self.machine.measured
        sizes = arrivals.sizes or [(arrivals.input_tokens, arrivals.output_tokens)]
        return None if measured is None else LoadBeyond.of(measured, sizes, self.model.max_batch)

    @property
    def is_billed(self) -> bool:
        """Whether there are prices."""
        return self.pricing is not None or self.market is not None

    def bill(self, result: FleetResult) -> float | None:
        """Return the dollars for all instances until a run's end; `None` without prices."""
        if self.pricing is None:
            return result.outcome.spent
        return self.pricing.bill(result.outcome.lives)


def input_lines(inputs: FleetInputs, assumed: Sequence[str]) -> list[str]:
    """Return the inputs in words; `assumed`: what was not given and matters most."""
    trace, arrivals, model = inputs.trace, inputs.arrivals, inputs.model
    counts = [count for _, count in trace.counts()]
    lost = sum(life.to_s is not None for life in trace.lives())
    shown_rate = "at their own times" if inputs.rate is None else f"at {inputs.rate:.3g} requests/s"
    paid = "no prices (--prices, --price)" if inputs.pricing is None else inputs.pricing.prices.source
    if inputs.market is not None:
        offers = inputs.market.offers
        paid = f"{inputs.market.kind.name} at " + ", ".join(
            f"{each.prices.at(0.0):g} $/h {each.market.value.replace('_', ' ')}{each.zone and f' in {each.zone}'} "
            f"(at most {each.most})"
            for each in offers
            if each.most
        )
    lines = [
        f"trace: {trace.name}, {trace.end_s:,.0f} s, {min(counts)} to {max(counts)} instances, {mean_instances(trace):.1f} in "
        f"the mean; {lost} leave, {inputs.surroundings.grace_s:g} s after their notice",
        f"machine: {inputs.machine.name}; {model.shape.name} on instances of {model.devices} such with "
        f"{bytes_text(model.device_bytes)} each, up to {model.max_batch} requests a pipeline",
        f"load: {arrivals.name}, {len(arrivals):,} requests before the trace's end, {shown_rate}; in the mean "
        f"{arrivals.input_tokens:,} tokens in and {arrivals.output_tokens:,} out",
        f"bill: {paid}; a run ends at its last answer, and {inputs.drain_s:g} s after the trace at the latest",
    ]
    return [*lines, f"assumed: {', '.join(assumed)}"] if assumed else lines


def fleet_table(inputs: FleetInputs, results: Sequence[FleetResult]) -> Table:
    """Return figures in rows, systems in columns."""
    table = Table(header_style="bold")
    table.add_column("figure")
    for result in results:
        table.add_column(result.system, justify="right")

    def row(name: str, figure: Callable[[FleetResult], str]) -> None:
        table.add_row(name, *(figure(result) for result in results))

    row("requests served", lambda each: f"{len(each.outcome.requests):,}")
    row("not served", lambda each: _marked(len(each.outcome.unfinished)))
    for figure in ("mean", "p50", "p90", "p99", "max"):
        table.add_row(f"latency, {figure}", *(_seconds(each.latency_s.get(figure)) for each in results))
    row("requests interrupted", lambda each: f"{each.outcome.interrupted_requests:,}")
    row("tokens computed again", lambda each: f"{each.outcome.recomputed_tokens:,}")
    row("reconfigurations", lambda each: f"{len(each.outcome.changes[1:]):,}")
    row("longest pause of a pipeline", lambda each: seconds_text(each.longest_pause_s))
    row("between devices", lambda each: bytes_text(sum(change.moved_bytes for change in each.outcome.changes)))
    row("from storage", lambda each: bytes_text(sum(change.storage_bytes for change in each.outcome.changes)))
    row("ended after", lambda each: f"{each.outcome.ended_s:,.1f} s")
    row("instance hours, spot", lambda each: f"{each.outcome.instance_s(Market.SPOT) / _HOUR_S:,.2f}")
    if any(each.outcome.instance_s(Market.ON_DEMAND) for each in results):
        row("instance hours, on demand", lambda each: f"{each.outcome.instance_s(Market.ON_DEMAND) / _HOUR_S:,.2f}")
    if inputs.is_billed:
        row("bill, $", lambda each: f"{inputs.bill(each):,.2f}")
        row("$ per 1,000 served", lambda each: _per_1000(inputs.bill(each), len(each.outcome.requests)))
    row("simulated in", lambda each: seconds_text(each.wall_s))
    return table


def unserved_lines(inputs: FleetInputs, results: Sequence[FleetResult]) -> list[str]:
    """Return what was not served, and why; and what helps where the fleet is too small for the model."""
    lines = [
        f"{each.system}: {len(each.outcome.unfinished):,} of {len(inputs.arrivals):,} requests are not served: "
        f"{each.outcome.why_unfinished}; they arrived from {each.outcome.unfinished[0].arrived_s:,.1f} s to "
        f"{each.outcome.unfinished[-1].arrived_s:,.1f} s"
        for each in results
        if each.outcome.unfinished
    ]
    least, counts = inputs.least_instances, [count for _, count in inputs.trace.counts()]
    if lines and not any(counts):
        lines.append("the trace, or this part of it, has no instance")
    elif lines and least is None:
        lines.append(
            f"{inputs.model.shape.name} does not fit all the trace's instances together; raise --devices or --memory, or lower "
            "--max-batch"
        )
    elif lines and least is not None and counts[-1] < least:
        lines.append(
            f"{inputs.model.shape.name} takes at least {least} of these instances, and the trace ends with {counts[-1]}"
        )
    return lines


def fleet_document(inputs: FleetInputs, results: Sequence[FleetResult]) -> dict[str, Any]:
    """Return all inputs but the load's requests, and all figures."""
    trace, arrivals, model, around = inputs.trace, inputs.arrivals, inputs.model, inputs.surroundings
    return {
        "trace": {"name": trace.name, "end_s": trace.end_s, "instances": trace.counts()},
        "load": {
            "name": arrivals.name,
            "requests": len(arrivals),
            "rate": inputs.rate,
            "input_tokens": arrivals.input_tokens,
            "output_tokens": arrivals.output_tokens,
            "seed": inputs.seed,
        },
        "machine": {
            "profile": inputs.machine.name,
            "model": model.shape.name,
            "devices": model.devices,
            "device_bytes": model.device_bytes,
            "max_batch": model.max_batch,
            "network_bytes_per_s": around.network_bytes_per_s,
            "within_bytes_per_s": around.local_bytes_per_s,
            "storage_bytes_per_s": around.storage_bytes_per_s,
        },
        "notice_s": around.grace_s,
        "restart_s": around.restart_s,
        "drain_s": inputs.drain_s,
        "prices": None if inputs.pricing is None else inputs.pricing.prices.source,
        "bought": inputs.market is not None,
        "least_instances": inputs.least_instances,
        "beyond_profile": None if inputs.beyond is None else asdict(inputs.beyond),
        "systems": [_system_document(inputs, result) for result in results],
    }


def _system_document(inputs: FleetInputs, result: FleetResult) -> dict[str, Any]:
    outcome = result.outcome
    return {
        "system": result.system,
        "served": len(outcome.requests),
        "unfinished": [
            {"arrived_s": each.arrived_s, "output_tokens": each.output_tokens} for each in outcome.unfinished
        ],
        "why_unfinished": outcome.why_unfinished,
        "latency_s": result.latency_s,
        "interrupted": outcome.interrupted_requests,
        "recomputed_tokens": outcome.recomputed_tokens,
        "changes": [
            {
                "time_s": change.time_s,
                "config": None if change.config is None else str(change.config),
                "instances": change.instances,
                "pause_s": change.pause_s,
                "moved_bytes": change.moved_bytes,
                "storage_bytes": change.storage_bytes,
            }
            for change in outcome.changes
        ],
        "ended_s": outcome.ended_s,
        "spot_s": outcome.instance_s(Market.SPOT),
        "on_demand_s": outcome.instance_s(Market.ON_DEMAND),
        "bill_usd": inputs.bill(result),
        "open_requests": result.open_requests(),
        "wall_s": result.wall_s,
    }


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else seconds_text(seconds)


def _marked(unserved: int) -> str:
    return f"[red]{unserved:,}[/]" if unserved else "0"


def _per_1000(dollars: float | None, served: int) -> str:
    return "" if dollars is None or not served else f"{1000 * dollars / served:,.2f}"


def plot_fleet(trace: SpotTrace, results: Sequence[FleetResult]) -> Figure:
    """Draw instances, pipelines (with `P x M` where that changes) and open requests over seconds, one panel below the other; a
    dotted line is the trace's end."""
    ended_s = max(result.outcome.ended_s for result in results)
    figure = new_figure(9, 7.2, trace.name)
    instances, pipelines, waiting = figure.subplots(3, 1, sharex=True)
    _steps(instances, trace.counts(), ended_s, color="#000000")
    instances.set_ylabel("instances")
    for number, result in enumerate(results):
        line = {"color": _COLOURS[number % 3], "linestyle": _STYLES[number % 3], "label": result.system}
        configs = [(at_s, config) for at_s, config in result.configs()]
        _steps(pipelines, [(at_s, 0 if each is None else each.pipelines) for at_s, each in configs], ended_s, **line)
        for (_, before), (at_s, after) in pairwise([(0.0, None), *configs]):
            if after is not None and (before is None or after.pipeline_devices != before.pipeline_devices):
                label = f"{after.pipeline}x{after.tensor}"
                pipelines.annotate(label, (at_s, after.pipelines), fontsize=6.5, color=line["color"])
        _steps(waiting, result.open_requests(), ended_s, **line)
    pipelines.set_ylabel("pipelines (P x M)")
    waiting.set_ylabel("open requests")
    waiting.set_xlabel("seconds")
    for axes in (instances, pipelines, waiting):
        axes.axvline(trace.end_s, color="#777777", linewidth=0.8, linestyle=":")
        axes.set_ylim(bottom=0)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.set_xlim(0, ended_s)
        bare_grid(axes)
    legend_below(figure, waiting, columns=3)
    return figure


def _steps(axes: Axes, points: Sequence[tuple[float, int]], ended_s: float, **line: Any) -> None:
    last = points[-1][1] if points else 0
    times_s, counts = zip(*((0.0, 0), *points, (ended_s, last)), strict=True)
    axes.step(times_s, counts, where="post", linewidth=1.4, **line)
