"""A gateway role on a bench: the test is its clients, its scheduler and its workers."""

from __future__ import annotations

from spotwise.core.gateway import commands as g
from spotwise.core.gateway.recovery import RecoveryLimits
from spotwise.core.gateway.role import GatewayRole
from spotwise.core.messages import mesh as m
from spotwise.core.requests.request import FinishReason
from tests.unit.core.builders import only

#: What an attempt's submission and its end look like, without the ledger lines.
Spoken = (
    g.SubmitAttempt
    | g.CloseAttempts
    | g.DeleteRecord
    | g.ParkAttempts
    | g.Deliver
    | g.Accept
    | g.Fail
    | g.CountCrossing
    | g.PublishLoad
    | m.Send
)


class GatewayBench:
    """A role and a clock. Streams are numbered from 1 in the order of the attempts."""

    def __init__(self, limits: RecoveryLimits | None = None) -> None:
        self.now = 1000.0
        self.role = GatewayRole("g", limits)

    def feed(self, event: g.GatewayEvent, after_s: float = 0.0) -> list[g.GatewayCommand]:
        """Let time pass, then the event happen."""
        self.now += after_s
        return self.role.handle(event, self.now)

    def tick(self, after_s: float = 0.0) -> list[g.GatewayCommand]:
        return self.feed(m.Tick(), after_s)

    def open(self, choice_id: str = "r", *, workers: tuple[str, str] | None = ("p", "t")) -> list[g.GatewayCommand]:
        """Receive a request; with workers, it is accepted and assigned too."""
        commands = self.feed(g.RequestReceived(choice_id, prompt_tokens=30, max_new_tokens=10))
        if workers is not None:
            commands += self.feed(m.RequestAccepted(choice_id, 1))
            commands += self.assigned(choice_id, workers=workers)
        return commands

    def assigned(
        self, choice_id: str = "r", epoch: int = 1, *, workers: tuple[str, str] = ("p", "t")
    ) -> list[g.GatewayCommand]:
        return self.feed(m.RequestAssigned(choice_id, epoch, *workers))

    def rejected(
        self,
        choice_id: str = "r",
        epoch: int = 1,
        code: m.RejectCode = m.RejectCode.MESH_FULL,
        after_s: float = 0.0,
    ) -> list[g.GatewayCommand]:
        return self.feed(m.RequestRejected(choice_id, epoch, code, "no room", 1.5), after_s)

    def tokens(
        self,
        *deltas: tuple[int, int],
        stream: int = 1,
        finish: FinishReason | None = None,
        worker: str = "t",
        after_s: float = 0.0,
        numerics_class: str = "",
    ) -> list[g.GatewayCommand]:
        """A batch of (index, token id) pairs of one stream; `finish` goes with the last."""
        built = [
            m.TokenDelta(stream, index, token, finish if number == len(deltas) - 1 else None)
            for number, (index, token) in enumerate(deltas)
        ]
        return self.feed(m.TokenBatch(worker, tuple(built), numerics_class=numerics_class), after_s)

    def error(
        self, *, stream: int = 1, retryable: bool = True, index: int = 0, after_s: float = 0.0
    ) -> list[g.GatewayCommand]:
        delta = m.TokenDelta(stream, index, None, FinishReason.ERROR, "broken", retryable)
        return self.feed(m.TokenBatch("t", (delta,)), after_s)


def delivered(commands: list[g.GatewayCommand]) -> list[int]:
    """Token ids handed on."""
    return [delta.token_id or 0 for delivery in only(commands, g.Deliver) for delta in delivery.tokens]


def submitted(commands: list[g.GatewayCommand]) -> list[tuple[int, int, tuple[int, ...]]]:
    """(epoch, stream id, committed tokens) of each attempt submitted."""
    return [(order.epoch, order.attempt_id, order.output_token_ids) for order in only(commands, g.SubmitAttempt)]


def spoken(commands: list[g.GatewayCommand]) -> list[Spoken]:
    """All but the ledger lines."""
    return [command for command in commands if not isinstance(command, m.RecordLedger)]
