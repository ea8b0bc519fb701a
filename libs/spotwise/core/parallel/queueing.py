"""How long a request waits before its batch begins: l_sched.

Law: the paper adds a scheduling latency to l_exe and does not say how long it is (SpotServe, section 4.1); its code leaves it
out. Here it is the wait in a queue in front of m equal pipelines. A pipeline that is free takes what waits, up to B requests,
and waits for nobody; a batch that is not full takes as long as a full one. Two waits add up:

- for room: batches of B arrive at rate alpha / B, their gaps vary by c^2 / B where those of requests vary by c^2, and wait

      (c^2 / B + s^2) / 2  x  l / m  x  rho^(sqrt(2 (m + 1)) - 1) / (1 - rho),      rho = alpha x l / (m B)

  after Allen and Cunneen's formula for G/G/m (1978) with Sakasegawa's waiting factor (1977), l and s being mean and coefficient
  of variation of a pipeline's seconds;
- for a pipeline: who comes while all are busy waits until the next one ends. All are busy about as often as they would be with
  B of 1, so for a = min(1, alpha x l / m) the share a^(sqrt(2 (m + 1)) - 1) of requests waits so. Where a is below 1 and
  arrivals are even, they rarely meet: weighed with a + (1 - a) x min(1, c^2 + s^2). The part of it that the first wait has
  counted already goes off: 1 / B^2. How long it is: l / (2 m) on average if pipelines end one after the other, l / 2 if they
  all end together. They come to do the latter where batches are large and chance is small, since a pipeline that ends a little
  after another one finds less to take. The share that does is (1 - 1 / (rho B))^1.5 x (1 - c^2 - s^2), each factor no less
  than 0: fitted to drawn arrivals, no theory.

With B = 1 this is Allen and Cunneen's formula, hence exact for M/M/1 and M/D/1; with B without end it is half of what a single
pipeline takes at high load, as it must be. In between it is an approximation, held against drawn arrivals in its tests, for c
up to 1. It is too low for bursts (c well above 1) at low load, as Allen and Cunneen's formula is.

Invariants: a wait is at least 0, none with no arrivals, and infinite where alpha reaches m B / l; it never falls with alpha or
l and never rises with m; with B = 1 it never falls with c or s.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: How fast pipelines begin to end together as batches grow.
_BUNCHING = 1.5


def waits_s(
    arrival_rate: float, arrival_cv: float, service_s: Floats, servers: Floats, max_batch: int, service_cv: float = 0.0
) -> Floats:
    """Return the seconds that a request waits, for each of several numbers of pipelines and seconds of a batch.

    Args:
        arrival_rate: requests a second: alpha.
        arrival_cv: standard deviation of the gaps between them by their mean; 1 for a Poisson process, 0 for a clock.
        service_s: of a batch on a pipeline.
        servers: pipelines, at least 1; of the same shape.
        max_batch: B.
        service_cv: of the seconds of a batch; 0 where they are all the same.

    Raises:
        ValueError: a rate, a coefficient or a batch that cannot be.
    """
    if arrival_rate < 0 or min(arrival_cv, service_cv) < 0 or max_batch < 1:
        raise ValueError("rates and coefficients of variation are at least 0, a batch at least 1")
    if arrival_rate == 0:
        return np.zeros_like(service_s)
    busy = arrival_rate * service_s / servers
    steepness = np.sqrt(2 * (servers + 1)) - 1
    stable = busy < max_batch
    load = np.where(stable, busy, 0.0) / max_batch
    spread = arrival_cv**2 / max_batch + service_cv**2
    finite_s = np.where(stable, service_s, 0.0)
    turn_s = finite_s / servers
    for_room = spread / 2 * turn_s * load**steepness / (1 - load)
    alone = np.minimum(1.0, busy)
    meet = alone + (1 - alone) * min(1.0, arrival_cv**2 + service_cv**2)
    bunched = (1 - 1 / np.maximum(busy, 1.0)) ** _BUNCHING * max(0.0, 1 - arrival_cv**2 - service_cv**2)
    until_next_s = (turn_s + (finite_s - turn_s) * bunched) / 2
    for_pipeline = (1 - 1 / max_batch**2) * alone**steepness * meet * until_next_s
    return np.where(stable, for_room + for_pipeline, np.inf)
