"""Decides if a run reached a steady state: by Little's law, if few of its requests were live at once.

A mean latency of a tenth of the time in which requests arrive means that a tenth of all were live at a time. With more, the run
filled up for a good part of its time, or arrivals exceed what is served and latencies grow with the run's length.
"""

from __future__ import annotations

#: Largest mean latency of a steady run, over the time in which requests arrive.
STEADY_SHARE = 0.1


def is_steady(mean_latency_s: float | None, arrivals_s: float) -> bool:
    """Return whether a run is steady; one without an answer is not."""
    return mean_latency_s is not None and mean_latency_s <= STEADY_SHARE * arrivals_s
