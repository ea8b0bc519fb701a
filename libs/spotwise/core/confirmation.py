"""What workers and schedulers ask gateways, so that no attempt outlives its request.

Law: a gateway owns its requests. Every `every_s` a holder, be it a worker or a scheduler, names to each gateway the attempts
that it has held for it for `SETTLED_S`; the gateway answers which of them are over, and the holder drops those. So whichever
message about an end was lost (a closing, a cancellation, what a former scheduler knew), an attempt ends `every_s + SETTLED_S`
and two messages later. A lost question or answer is made up for by the next.
Silence ends no attempt: a gateway that is paused loses nothing by it, and one that is gone is forgotten
(`cluster/gateways.py`). The gateway in turn starts an attempt anew that no question has named for long (`gateway/role.py`).

Invariants: a question names `MAX_ATTEMPTS` at most.
"""

from __future__ import annotations

from collections.abc import Iterable

from spotwise.core import messages as m

#: Seconds between two questions of the services.
CONFIRM_EVERY_S = 2.0
#: An attempt that is held for less is not asked about: most are over before, and cost nothing.
SETTLED_S = 1.0
#: Attempts of one message: about 12 kB.
MAX_ATTEMPTS = 256


class Confirmations:
    """One holder's questions.

    Args:
        holder_id: who asks.
        every_s: seconds between two questions to a gateway; `None` where no gateway answers, and nothing is asked.
    """

    def __init__(self, holder_id: str, every_s: float | None) -> None:
        self._holder_id = holder_id
        self._every_s = every_s
        self._asked_s = 0.0

    def is_due(self, now: float) -> bool:
        """Tell whether it is time to ask."""
        if self._every_s is None:
            return False
        return now - self._asked_s >= self._every_s or now < self._asked_s  # the clock was set back

    def ask(self, held: Iterable[tuple[m.StreamRef, m.Attempt, float]], now: float) -> list[m.Send]:
        """Return the questions about what is held.

        Args:
            held: the stream of each, its attempt, and since when.
            now: Unix seconds.
        """
        self._asked_s = now
        attempts: dict[tuple[str, int], list[m.Attempt]] = {}
        for stream, attempt, since_s in held:
            if now - since_s >= SETTLED_S:
                attempts.setdefault((stream.gateway_id, stream.incarnation), []).append(attempt)
        return [
            m.Send(
                gateway_id, m.ConfirmAttempts(self._holder_id, tuple(named[first : first + MAX_ATTEMPTS])), incarnation
            )
            for (gateway_id, incarnation), named in attempts.items()
            for first in range(0, len(named), MAX_ATTEMPTS)
        ]
