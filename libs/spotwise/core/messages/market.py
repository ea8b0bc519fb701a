"""How instances are bought, and how far they are."""

from __future__ import annotations

from enum import StrEnum


class Market(StrEnum):
    """Billing of an instance: spot (preemptible at short notice) or on-demand."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"


class InstanceState(StrEnum):
    """The state of an instance, which only moves forward.

    STARTING is billed but not ready; LEAVING accepts no more work; GONE is final, and listed for at least an hour.
    """

    STARTING = "starting"
    RUNNING = "running"
    LEAVING = "leaving"
    GONE = "gone"
