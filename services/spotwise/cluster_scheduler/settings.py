"""Settings of the cluster scheduler, in addition to every service's."""

from __future__ import annotations

from pydantic import Field

from spotwise.core.membership.confirmation import CONFIRM_EVERY_S
from spotwise.core.scheduler.policy import DecodeQueue, PoolPolicy
from spotwise.core.scheduler.role import SchedulerLimits
from spotwise.mesh.service.settings import ServiceSettings


class SchedulerSettings(ServiceSettings):
    """Limits of requests, and how workers are chosen."""

    max_queued: int = Field(
        1024,
        ge=0,
        description="maximum queued requests; further new ones are rejected, those whose attempt was lost are not",
    )
    max_queue_s: float = Field(
        60.0,
        gt=0,
        description="maximum seconds that a new request waits for a free worker, and with SPOTWISE_CROSSING=refuse any for a "
        "worker of its numerics class; no other limit for one whose attempt was lost",
    )
    max_passes: int = Field(
        16,
        ge=0,
        description="how many requests may pass one of their priority that waits for free KV; 0: strictly in order",
    )
    max_unready_s: float = Field(
        30.0,
        ge=0,
        description="maximum seconds that a request waits while no worker is ready; 0: it is rejected at once",
    )
    reservation_timeout_s: float = Field(2.0, gt=0)
    lease_s: float = Field(3.0, gt=0, description="seconds of a KV reservation's lease")

    scheduler_lease_s: float = Field(
        1.5, ge=0.3, le=30, description="seconds of silence of the active scheduler after which a standby takes over"
    )
    gateway_timeout_s: float = Field(
        10.0,
        gt=0,
        description="seconds without a heartbeat after which a gateway counts as lost, and its requests are cancelled",
    )

    max_pending_prompt_tokens: int = Field(
        8192,
        ge=0,
        description="maximum prompt tokens in a prompt queue where a prompt waits; above it requests go to other pools",
    )
    max_remaining_tokens: int | None = Field(
        None,
        ge=0,
        description="maximum tokens in a token queue that is not empty; above it requests go to other pools; unset: no "
        "limit",
    )
    decode_queue: DecodeQueue = Field(
        DecodeQueue.REMAINING_TOKENS,
        description="what a decode adds to the queue of a worker for both phases: remaining_tokens (their number), or "
        "sequences (one)",
    )
    break_even: bool = Field(
        True, description="serve both phases on one worker where splitting costs more than it saves"
    )
    repurpose_share: float = Field(
        0.8, gt=0, le=1, description="share of off-pool work in a window after which a worker changes its home pool"
    )
    repurpose_window_s: float = Field(
        120.0,
        ge=0,
        description="seconds of the window, in which at most one worker changes its home pool; 0: none does",
    )
    prefix_spans: int = Field(
        32_768, ge=0, description="maximum prompt prefixes that the scheduler remembers with their workers; 0: none"
    )
    interruption_s: float = Field(
        10.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds that an interruption costs a request, where the fleet is reported; 0: only queues count",
    )
    token_s: float = Field(
        0.05,
        gt=0,
        allow_inf_nan=False,
        description="assumed seconds of an output token, until answers have ended",
    )

    scheduler_metrics_port: int | None = Field(
        None, ge=0, le=65535, description="port of the scheduler's metrics; 0 takes a free one; unset: none"
    )

    @property
    def member_metrics(self) -> tuple[int | None, str]:
        """The port of its metrics, and the setting's name."""
        return self.scheduler_metrics_port, "SPOTWISE_SCHEDULER_METRICS_PORT"

    @property
    def policy(self) -> PoolPolicy:
        """How the role chooses workers."""
        return PoolPolicy(
            max_pending_prompt_tokens=self.max_pending_prompt_tokens,
            max_remaining_tokens=self.max_remaining_tokens,
            decode_queue=self.decode_queue,
            break_even=self.break_even,
            repurpose_share=self.repurpose_share,
            repurpose_window_s=self.repurpose_window_s or None,
            prefix_spans=self.prefix_spans,
            interruption_s=self.interruption_s,
            token_s=self.token_s,
            max_passes=self.max_passes,
            crossing=self.crossing,
        )

    @property
    def limits(self) -> SchedulerLimits:
        """The role's limits."""
        return SchedulerLimits(
            max_queued=self.max_queued,
            max_queue_s=self.max_queue_s,
            max_unready_s=self.max_unready_s,
            reservation_timeout_s=self.reservation_timeout_s,
            lease_s=self.lease_s,
            member_timeout_s=self.member_timeout_s,
            gateway_timeout_s=self.gateway_timeout_s,
            confirm_every_s=CONFIRM_EVERY_S,
        )
