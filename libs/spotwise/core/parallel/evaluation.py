"""Evaluates mixes of pipelines of one shape: throughput, latency, instances, price.

Law: with phases together, pipelines of several types serve side by side; the mean of l_exe over requests is D x B / phi, and
the wait is that of D equal pipelines with this mean.
With phases split a request waits twice, for its prompt and for its decoding, with the same variation of arrivals.
Instances are counted by type, the cheaper ones of each first; a mix's values do not depend on the other mixes.
`evaluate` tries many mixes of a shape, `evaluate_mix` one that is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spotwise.core.parallel.candidates import Shape, TypeSpeed
from spotwise.core.parallel.instances import Supply
from spotwise.core.parallel.mixes import Counts, Floats, split, together, waits_s
from spotwise.core.parallel.policy import Latency, Policy, ServiceDemand


@dataclass(frozen=True, slots=True)
class Mixes:
    """Mixes of pipelines of one shape; one column or entry each.

    Attributes:
        prompt_data, data: pipelines for prompts only, and pipelines that decode; a row for each type of the shape.
        throughput: requests a second.
        execution_s, request_s: l_exe, mean over requests; the same plus the waits.
        latency_s: the one of the two that the policy minimises.
        price_per_h: dollars an hour.
    """

    shape: Shape
    prompt_data: Counts
    data: Counts
    throughput: Floats
    execution_s: Floats
    request_s: Floats
    latency_s: Floats
    instances: Counts
    price_per_h: Floats

    def within(self, budget_per_h: float | None) -> Mixes:
        """Return the mixes that cost no more; all of them with `None`."""
        if budget_per_h is None:
            return self
        kept = np.flatnonzero(self.price_per_h <= budget_per_h)
        return Mixes(
            self.shape,
            self.prompt_data[:, kept],
            self.data[:, kept],
            self.throughput[kept],
            self.execution_s[kept],
            self.request_s[kept],
            self.latency_s[kept],
            self.instances[kept],
            self.price_per_h[kept],
        )


def evaluate(shape: Shape, is_split: bool, demand: ServiceDemand, supplies: Sequence[Supply], policy: Policy) -> Mixes:
    """Return the mixes of a shape with phases together or split, evaluated."""
    if is_split:
        parts = _split(shape, demand, supplies)
    else:
        most, seconds = [speed.most for speed in shape.speeds], [speed.execution_s for speed in shape.speeds]
        parts = _together(shape, demand, together(most, seconds))
    return _mixes(shape, parts, supplies, policy)


def evaluate_mix(
    shape: Shape,
    counts: Sequence[tuple[int, int]],
    demand: ServiceDemand,
    supplies: Sequence[Supply],
    policy: Policy,
) -> Mixes:
    """Return one mix of a shape, evaluated.
    `counts`: of each of its types, pipelines for prompts and those that decode; split, one type has each kind.
    """
    prompts, data = (np.array(numbers, dtype=np.int64) for numbers in zip(*counts, strict=True))
    if not prompts.any():
        return _mixes(shape, _together(shape, demand, data[:, None]), supplies, policy)
    first, second = int(prompts.argmax()), int(data.argmax())
    waits = [_phase_waits(shape, demand, speed) for speed in shape.speeds]
    pair = _pair(
        shape,
        (first, second),
        (shape.speeds[first], shape.speeds[second]),
        (prompts[first : first + 1], data[second : second + 1]),
        waits,
    )
    return _mixes(shape, pair, supplies, policy)


def _mixes(
    shape: Shape,
    parts: tuple[Counts, Counts, Floats, Floats, Floats],
    supplies: Sequence[Supply],
    policy: Policy,
) -> Mixes:
    prompt_data, data, throughput, execution_s, wait_s = parts
    instances = np.zeros(data.shape[1], dtype=np.int64)
    price_per_h = np.zeros(data.shape[1])
    for row, speed in enumerate(shape.speeds):
        supply = supplies[speed.supply]
        devices = (prompt_data[row] + data[row]) * shape.config.pipeline_devices
        needed = -(-devices // supply.type.devices)
        instances += needed
        price_per_h += supply.price_per_h(needed)
    request_s = execution_s + wait_s
    latency_s = request_s if policy.latency is Latency.REQUEST else execution_s
    return Mixes(shape, prompt_data, data, throughput, execution_s, request_s, latency_s, instances, price_per_h)


def _together(shape: Shape, demand: ServiceDemand, data: Counts) -> tuple[Counts, Counts, Floats, Floats, Floats]:
    batch = shape.config.max_batch
    seconds = [speed.execution_s for speed in shape.speeds]
    throughput = (batch / np.array(seconds)) @ data
    pipelines = data.sum(axis=0).astype(np.float64)
    execution_s = pipelines * batch / throughput
    wait_s = _waits_s(demand, execution_s, pipelines, batch)
    return np.zeros_like(data), data, throughput, execution_s, wait_s


def _split(
    shape: Shape, demand: ServiceDemand, supplies: Sequence[Supply]
) -> tuple[Counts, Counts, Floats, Floats, Floats]:
    batch, speeds = shape.config.max_batch, shape.speeds
    waits = [_phase_waits(shape, demand, speed) for speed in speeds]
    prices = [_pipeline_price(supplies[speed.supply], shape) for speed in speeds]
    parts = []
    for first, prompt in enumerate(speeds):
        for second, decode in enumerate(speeds):
            prompts, decodes = split(
                (prompt.most, decode.most),
                same_type=first == second,
                seconds=(prompt.prompt_s, decode.decode_s),
                batch_rate=demand.arrival_rate / batch,
                waits_s=(waits[first][0], waits[second][1]),
                prices=(prices[first], prices[second]),
            )
            parts.append(_pair(shape, (first, second), (prompt, decode), (prompts, decodes), waits))
    prompt_data, data, throughput, execution_s, wait_s = zip(*parts, strict=True)
    return (
        np.concatenate(prompt_data, axis=1),
        np.concatenate(data, axis=1),
        np.concatenate(throughput),
        np.concatenate(execution_s),
        np.concatenate(wait_s),
    )


def _phase_waits(shape: Shape, demand: ServiceDemand, speed: TypeSpeed) -> tuple[Floats, Floats]:
    count = np.arange(1, speed.most + 1, dtype=np.float64)
    prompt_s, decode_s = (np.full_like(count, seconds) for seconds in (speed.prompt_s, speed.decode_s))
    batch = shape.config.max_batch
    return _waits_s(demand, prompt_s, count, batch), _waits_s(demand, decode_s, count, batch)


def _pair(
    shape: Shape,
    rows: tuple[int, int],
    speeds: tuple[TypeSpeed, TypeSpeed],
    counts: tuple[Counts, Counts],
    waits: Sequence[tuple[Floats, Floats]],
) -> tuple[Counts, Counts, Floats, Floats, Floats]:
    (prompt, decode), (prompts, decodes), batch = speeds, counts, shape.config.max_batch
    prompt_data, data = (np.zeros((len(shape.speeds), len(prompts)), dtype=np.int64) for _ in rows)
    prompt_data[rows[0]], data[rows[1]] = prompts, decodes
    throughput = np.minimum(prompts * (batch / prompt.prompt_s), decodes * (batch / decode.decode_s))
    execution_s = np.full(len(prompts), prompt.prompt_s + prompt.handover_s + decode.decode_s)
    wait_s = waits[rows[0]][0][prompts - 1] + waits[rows[1]][1][decodes - 1]
    return prompt_data, data, throughput, execution_s, wait_s


def _waits_s(demand: ServiceDemand, service_s: Floats, pipelines: Floats, batch: int) -> Floats:
    return waits_s(demand.arrival_rate, demand.arrival_cv, service_s, pipelines, batch, demand.execution_cv)


def _pipeline_price(supply: Supply, shape: Shape) -> float:
    each = supply.price_per_h(np.array([supply.instances]))[0] / supply.instances
    return float(each * shape.config.pipeline_devices / supply.type.devices)
