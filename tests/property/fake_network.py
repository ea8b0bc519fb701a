"""The network and the time of a mesh in one process.

Links are first in, first out for each pair of members, with random delays between them; everything else may happen in any
order. Messages may be lost or repeated; the broker may be away, and then delivers all that waited, in order.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from spotwise.core.messages import mesh as m

#: What a lossy mesh may lose: each receiver of these messages has a time-out.
LOSABLE = (
    *(m.ReserveKv, m.KvReserved, m.KvRefused, m.StartPrefill, m.PrefillAccepted, m.RenewLeases, m.Member),
    *(m.ConfirmAttempts, m.AttemptsConfirmed, m.ForgetGateway, m.RequestAssigned, m.TokenBatch),
    *(m.MoveRequest, m.RequestMoved, m.MoveAcknowledged, m.MoveEnded),
    *(m.SurveyWorker, m.WorkerSurveyed, m.GiveBackRequest, m.InterruptionReported),
    *(m.SurveyDevice, m.DeviceSurveyed, m.LeadGroup),
    *(m.LoadReported, m.FleetReported, m.FleetOrder),
)
#: What a mesh that repeats messages delivers once more, seconds later.
REPEATABLE = (
    *(m.MoveRequest, m.RequestMoved, m.MoveAcknowledged, m.MoveEnded),
    *(m.SurveyWorker, m.WorkerSurveyed, m.GiveBackRequest),
    *(m.SurveyDevice, m.DeviceSurveyed, m.LeadGroup),
)
#: Messages that a request, or an attempt, is over.
ENDINGS = (m.CloseRequest, m.CancelRequest)


class FakeNetwork:
    """What happens when, and who hears of it.

    Attributes:
        now: Unix time, in seconds.
        loss, ending_loss: probability that a message which may be lost is, and one that a request is over.
        repeats: probability that a message which may be repeated is.
        broker_away: since when, and until when.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 1000.0
        self.loss = self.ending_loss = self.repeats = 0.0
        self.broker_away: tuple[float, float] = (0.0, 0.0)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._link_free: dict[tuple[str, str], float] = {}

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later."""
        self._order += 1
        heapq.heappush(self._events, (self.now + delay_s, self._order, action))

    def run_until(self, end: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= end and not done():
            self.now, _, action = heapq.heappop(self._events)
            action()

    def delay(self, most: float = 0.02) -> float:
        """Draw the seconds that a message takes."""
        return self.rng.uniform(0.0, most)

    def loses(self, message: Any) -> bool:
        """Draw whether a message is lost."""
        if isinstance(message, ENDINGS):
            return self.rng.random() < self.ending_loss
        return isinstance(message, LOSABLE) and self.rng.random() < self.loss

    def pause_broker(self, seconds: float) -> None:
        """Delay every message for a while, then deliver all of them in order."""
        self.broker_away = self.now, self.now + seconds

    def transmit(self, sender: str, recipient: str, action: Callable[[], None]) -> None:
        """Do something when a message arrives."""
        since, until = self.broker_away
        delayed = until if since <= self.now < until else 0.0
        arrival = max(self.now + self.delay(), self._link_free.get((sender, recipient), 0.0) + 1e-9, delayed)
        self._link_free[sender, recipient] = arrival
        self.at(arrival - self.now, action)
