"""How hard a gateway tries to finish a request, and what it takes for lost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """How hard the gateway tries.

    Attributes:
        recovery_s: a lost attempt is followed by others until this long after the first loss since the last token.
        retry_pause_s: between an attempt that found nobody and the next.
        stall_s: an attempt that brings nothing for so long counts as lost.
        member_timeout_s: silence after which a worker counts as lost.
        scheduler_timeout_s: the same for a scheduler: one that is only slow has not forgotten what waits in its queue, and
            one that has started anew says so.
        unheld_s: an attempt that no scheduler and no worker has named for so long is lost, whichever message was; `None` where
            they name none.
        gap_s: a token that others have overtaken, or a batch that its worker has counted, is lost if it is not here by then.
    """

    recovery_s: float = 30.0
    retry_pause_s: float = 0.3
    stall_s: float = 120.0
    member_timeout_s: float = 2.0
    scheduler_timeout_s: float = 10.0
    unheld_s: float | None = None
    gap_s: float = 1.0
