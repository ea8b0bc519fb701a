"""How long a gateway tries to finish a request, and when it counts an attempt or a member as lost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """Limits of a request's recovery, in seconds.

    Attributes:
        recovery_s: a lost attempt is followed by others until this long after the first loss since the last token, not counting
            time in which another one was held.
        retry_pause_s: between an attempt that was lost and the next.
        stall_s: an attempt without tokens for so long is lost, although it is held: a bug's last net, since watchdogs find what
            is stuck, and requests of a full mesh wait for minutes.
        scheduler_timeout_s: silence of a lost scheduler: a slow one keeps its queue, and a restarted one announces itself.
        submit_s: a request that no scheduler has accepted yet is submitted again until this long after it was received: of
            several schedulers a standby takes over, and a single one is started again.
        unheld_s: an attempt that no scheduler and no worker has named as held for so long is lost; `None` where they name none.
        gap_s: a token that others have overtaken, or a batch that its worker has counted, is lost after this long.
    """

    recovery_s: float = 30.0
    retry_pause_s: float = 0.3
    stall_s: float = 600.0
    member_timeout_s: float = 2.0
    scheduler_timeout_s: float = 10.0
    submit_s: float = 0.0
    unheld_s: float | None = None
    gap_s: float = 1.0
