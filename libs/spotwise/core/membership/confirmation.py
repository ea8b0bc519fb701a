"""Confirmations between holders of attempts and their gateways, so that no attempt outlives its request.

Law: every `every_s` a worker or scheduler names to each gateway the attempts that it has held for it for `SETTLED_S`.
The gateway answers which of them are over, and the holder drops those; a lost message is made up for by the next.
Silence ends no attempt; gateways that are gone are handled by `scheduler/gone.py`.
A gateway restarts an attempt that no holder has named for long (`gateway/role.py`). What a scheduler has assigned is held by
workers: its own question says nothing of that, so that an attempt is not lost with a worker that its gateway never heard of.
"""

from __future__ import annotations

from collections.abc import Iterable

from spotwise.core.messages import mesh as m

#: Seconds between two confirmations, in the services.
CONFIRM_EVERY_S = 2.0
#: Seconds for which an attempt is held before it is confirmed: most have ended by then.
SETTLED_S = 1.0
#: Attempts of one message at most: about 12 kB.
MAX_ATTEMPTS = 256


class Confirmations:
    """One holder's confirmations, `every_s` seconds apart; `None` where gateways do not answer."""

    def __init__(self, holder_id: str, every_s: float | None) -> None:
        self._holder_id = holder_id
        self._every_s = every_s
        self._sent_s = 0.0

    def is_due(self, now: float) -> bool:
        """Tell whether it is time for the next ones."""
        if self._every_s is None:
            return False
        return now - self._sent_s >= self._every_s or now < self._sent_s  # the clock was set back

    def messages(
        self, held: Iterable[tuple[m.StreamRef, m.Attempt, float]], now: float, *, assigned: bool = False
    ) -> list[m.Send]:
        """Return the messages to the gateways; `held`: stream, attempt, and Unix time since when it is held."""
        self._sent_s = now
        attempts: dict[tuple[str, int], list[m.Attempt]] = {}
        for stream, attempt, since_s in held:
            if now - since_s >= SETTLED_S:
                attempts.setdefault((stream.gateway_id, stream.incarnation), []).append(attempt)
        return [
            m.Send(
                gateway_id,
                m.ConfirmAttempts(self._holder_id, tuple(named[first : first + MAX_ATTEMPTS]), assigned),
                incarnation,
            )
            for (gateway_id, incarnation), named in attempts.items()
            for first in range(0, len(named), MAX_ATTEMPTS)
        ]
