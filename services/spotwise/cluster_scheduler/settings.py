"""Settings of the cluster scheduler, beside those of every service."""

from __future__ import annotations

from pydantic import Field

from spotwise.core.scheduler import SchedulerLimits
from spotwise.mesh.settings import ServiceSettings


class SchedulerSettings(ServiceSettings):
    """How long requests wait, and for what."""

    max_queued: int = Field(1024, ge=0, description="requests that wait for room at most")
    max_queue_s: float = Field(60.0, gt=0, description="seconds that a request waits for room at most")
    reservation_timeout_s: float = Field(2.0, gt=0)
    lease_s: float = Field(3.0, gt=0, description="length of a KV reservation's lease")

    @property
    def limits(self) -> SchedulerLimits:
        """The role's limits."""
        return SchedulerLimits(
            max_queued=self.max_queued,
            max_queue_s=self.max_queue_s,
            reservation_timeout_s=self.reservation_timeout_s,
            lease_s=self.lease_s,
            member_timeout_s=self.member_timeout_s,
        )
