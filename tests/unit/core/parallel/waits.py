"""The wait of one number of pipelines, as the optimizer reckons it for many."""

from __future__ import annotations

import numpy as np

from spotwise.core.parallel.mixes import waits_s


def waiting_s(
    arrival_rate: float, arrival_cv: float, service_s: float, servers: int, max_batch: int = 1, service_cv: float = 0.0
) -> float:
    """Return the seconds that a request waits; arguments as of `waits_s`."""
    waits = waits_s(arrival_rate, arrival_cv, np.array([service_s]), np.array([float(servers)]), max_batch, service_cv)
    return float(waits[0])
