"""A user's own fleet in the spot world. A device is the machine of a profile (`core.fleet.measured`). The mesh's roles make
the batches; SpotServe's migrations, restarts of all engines and rerouting are compared (SpotServe, section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from spotwise.core.costs.cost_profile import CostProfile
from spotwise.core.fleet.types import MeasuredType, measured_model
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.policy import Latency
from spotwise.files.spot_traces import SpotTrace
from spotwise.files.tables import TraceError
from spotwise.simulator.loads.workload import ClusterWorkload
from spotwise.simulator.spotserve.arrivals import SpotArrivals
from spotwise.simulator.spotserve.choices import greatest_throughput
from spotwise.simulator.spotserve.systems import (
    REPARALLELIZATION,
    REROUTING,
    SPOTSERVE,
    BatchFormation,
    SpotModel,
    SpotSurroundings,
    SpotSystem,
)

#: What a user compares, by name; configurations are chosen by l_req, queueing included (SpotServe, section 4.1).
COMPARED = {
    name: replace(system, name=name, batching=BatchFormation.ITERATION, latency=Latency.REQUEST)
    for name, system in (
        ("spotwise", replace(SPOTSERVE, forms_ahead=True, keeps=True)),
        ("restart", REPARALLELIZATION),
        ("rerouting", REROUTING),
        ("eager", replace(SPOTSERVE, forms_ahead=True)),
    )
}
#: Those of them that are compared where none is named; `eager` is `spotwise` without hysteresis.
USUALLY_COMPARED = ("spotwise", "restart", "rerouting")
#: Share of what the mean fleet serves that is taken for a load, and the most requests of it.
_USUAL_LOAD, _MOST_REQUESTS = 0.5, 5_000
_DRAWN_SIZES = 4096


@dataclass(frozen=True, slots=True)
class RequestSize:
    """Tokens of a usual request."""

    input_tokens: int
    output_tokens: int


def usual_size(workload: ClusterWorkload, seed: int) -> RequestSize:
    """Return the mean size of a workload's requests; raises TraceError if its trace cannot be read."""
    drawn = workload.sizes().draw(_DRAWN_SIZES, np.random.default_rng(seed))
    return RequestSize(*(max(1, round(float(tokens.mean()))) for tokens in drawn))


def own_model(
    profile: CostProfile,
    shape: ModelShape,
    size: RequestSize,
    surroundings: SpotSurroundings,
    *,
    devices: int = 1,
    device_bytes: int | None = None,
    max_batch: int | None = None,
) -> SpotModel:
    """Return a model on instances of the profile's devices.

    Args:
        shape: dimensions of the profiled model.
        devices: devices of an instance.
        device_bytes: for weights and KV on a device; `None`: as the profiled worker had.
        max_batch: B; `None`: the largest power of two up to 32 whose usual requests fit the profiled KV cache.

    Raises:
        ValueError: the profile is of another model.
    """
    measured = measured_model(
        [
            MeasuredType(
                "instance",
                profile,
                devices,
                surroundings.local_bytes_per_s,
                surroundings.network_bytes_per_s,
                device_bytes,
            )
        ],
        shape,
        size.input_tokens,
        size.output_tokens,
        max_batch=max_batch,
    )
    (instances,) = measured.types
    return SpotModel(
        measured.shape,
        instances.cost,
        measured.memory,
        max_batch=measured.max_batch,
        devices=instances.devices,
        device_bytes=instances.device_memory_bytes,
        searched_as_published=False,
    )


def least_pipeline(trace: SpotTrace, model: SpotModel, size: RequestSize) -> tuple[int, ParallelConfig] | None:
    """Return the fewest of a trace's instances that can serve a model, and their configuration; `None` where all cannot."""
    for instances in range(1, max(count for _, count in trace.counts()) + 1):
        choice = greatest_throughput(model, instances, size.input_tokens, size.output_tokens)
        if choice is not None:
            return instances, choice.config
    return None


def compared_systems(names: Sequence[str], least: ParallelConfig | None) -> list[SpotSystem]:
    """Return systems by their names; one with a fixed shape has that of `least`, so that a loss stops few of its pipelines."""
    systems = [COMPARED[name] for name in names]
    return [system if system.adapts else replace(system, shape=least) for system in systems]


def mean_instances(trace: SpotTrace) -> float:
    """Return the mean number of instances over a trace; 0 for one without a span."""
    steps = [(0.0, 0), *trace.counts(), (trace.end_s, 0)]
    spans = ((later_s - at_s) * count for (at_s, count), (later_s, _) in pairwise(steps))
    return sum(spans) / trace.end_s if trace.end_s > 0 else 0.0


def usual_rate(trace: SpotTrace, model: SpotModel, size: RequestSize) -> float:
    """Return requests a second to assume for a trace with a span: half of what its mean fleet serves, at most 5,000 in all."""
    choice = greatest_throughput(model, max(1, int(mean_instances(trace))), size.input_tokens, size.output_tokens)
    most = _MOST_REQUESTS / trace.end_s
    return most if choice is None else min(_USUAL_LOAD * choice.throughput, most)


def own_arrivals(
    workload: ClusterWorkload, rate: float | None, end_s: float, seed: int, size: RequestSize
) -> SpotArrivals:
    """Return a workload's requests before a time, each of its own size; `size` is what configurations are chosen for. Raises
    TraceError if a trace cannot be read, or no request arrives by then."""
    arrivals = [arrival for arrival in workload.arrivals(rate, end_s, seed) if arrival.at_s < end_s]
    if not arrivals:
        raise TraceError(
            f"no request arrives in the {end_s:g} s of the fleet's trace; raise the rate, or take a longer trace"
        )
    return SpotArrivals(
        workload.name,
        tuple(arrival.at_s for arrival in arrivals),
        size.input_tokens,
        size.output_tokens,
        tuple((arrival.prompt_tokens, arrival.output_tokens) for arrival in arrivals),
    )
