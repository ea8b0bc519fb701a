"""Mean wait of a request before its batch begins: l_sched.

Law: the paper adds a scheduling latency to l_exe without a formula (SpotServe, section 4.1). Here it is the wait before m equal
pipelines, each of which takes what waits, up to B requests, when it is free; a batch takes l seconds with variation s.
For capacity: batches arrive at alpha / B with variation c^2 / B and wait, after Allen and Cunneen (1978) with Sakasegawa's
factor (1977) and rho = alpha x l / (m B):  (c^2 / B + s^2) / 2  x  l / m  x  rho^(sqrt(2 (m + 1)) - 1) / (1 - rho)
For the next pipeline: with a = min(1, alpha x l / m), the share a^(sqrt(2 (m + 1)) - 1) of requests, weighed with
a + (1 - a) x min(1, c^2 + s^2), waits l / (2 m) where pipelines end in turn and l / 2 where they end together; 1 / B^2 is off.

Exact for B = 1 where Allen and Cunneen's formula is; the docs state how far it holds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: How fast pipelines begin to end together as batches grow; fitted to drawn arrivals.
_BUNCHING = 1.5


def waits_s(
    arrival_rate: float, arrival_cv: float, service_s: Floats, servers: Floats, max_batch: int, service_cv: float = 0.0
) -> Floats:
    """Return the mean wait of a request in seconds, for each of several numbers of pipelines and seconds of a batch.

    Args:
        arrival_rate: alpha, requests a second.
        arrival_cv: coefficient of variation of the gaps; 1 for a Poisson process, 0 for a clock.
        service_s, service_cv: seconds of a batch on a pipeline, and their coefficient of variation.
        servers, max_batch: pipelines of the same shape, at least 1; B.

    Raises:
        ValueError: a rate, a coefficient or a batch out of range.
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
    for_slot = spread / 2 * turn_s * load**steepness / (1 - load)
    alone = np.minimum(1.0, busy)
    meet = alone + (1 - alone) * min(1.0, arrival_cv**2 + service_cv**2)
    bunched = (1 - 1 / np.maximum(busy, 1.0)) ** _BUNCHING * max(0.0, 1 - arrival_cv**2 - service_cv**2)
    until_next_s = (turn_s + (finite_s - turn_s) * bunched) / 2
    for_pipeline = (1 - 1 / max_batch**2) * alone**steepness * meet * until_next_s
    return np.where(stable, for_slot + for_pipeline, np.inf)
