"""A gateway whose requests another one has taken over: dead, or asleep, or awake again and not aware of it yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from spotwise.core.gateway import commands as g
from spotwise.core.gateway.role import GatewayRole
from spotwise.core.messages import mesh as m
from spotwise.wire.roles import MeshRole
from tests.property.worker_processes import expected_token

if TYPE_CHECKING:
    from tests.property.mesh_world import MeshWorld

#: It saves tokens once a second, and learns then what it has lost.
TOLD_WITHIN_S = 1.0


class FormerGateway:
    """What it still does reaches the mesh; what it gives its clients is checked, and is none of the new owner's."""

    def __init__(self, world: MeshWorld, gateway_id: str, role: GatewayRole, *, is_dead: bool) -> None:
        self.id = gateway_id
        self.is_awake = False
        self._is_dead = is_dead
        self.refused = 0
        self._world = world
        self._role = role
        self._owned = [choice_id for choice_id in world.prompts if choice_id not in world.ended]
        #: The last attempts that the store took: it names no later ones to a scheduler.
        self._submitted = dict(world.attempts)
        self._waiting: list[Callable[[], None]] = []

    def wake(self, slept_s: float) -> None:
        """Go on, first with a tick, then with all that came meanwhile."""
        self.is_awake = True
        self.feed(m.Tick(away_s=slept_s))
        for action in self._waiting:
            action()
        self._world.at(self._world.delay(TOLD_WITHIN_S), self._learn)

    def receive(self, command: m.Send) -> None:
        """Take a message to its inbox, which is one incarnation's."""
        if command.incarnation in (None, self._role.incarnation):
            self.feed(command.message)

    def feed(self, event: Any) -> None:
        """Handle an event, once it is awake."""
        if not self.is_awake:
            if not self._is_dead:
                self._waiting.append(partial(self.feed, event))
            return
        for command in self._role.handle(event, self._world.now):
            match command:
                case g.SubmitAttempt(choice_id):
                    self.refused += 1  # the store takes its record no more
                    self.feed(g.RequestTaken(choice_id))
                case g.CloseAttempts(order) if epoch := self._submitted.get(order.choice_id):
                    self._world.close_attempts(self.id, replace(order, epoch=min(order.epoch, epoch)))
                case m.Send():
                    self._world.send(MeshRole.GATEWAY, self.id, command)
                case g.Deliver(choice_id, tokens):
                    assert all(each.token_id == expected_token(choice_id, each.token_index) for each in tokens)

    def _learn(self) -> None:
        for choice_id in self._owned:
            self.feed(g.RequestTaken(choice_id))
        assert self._role.open_requests == 0
