"""Machines under notice. What happens to each request of one is decided as in the live mesh (`interruption.rearrange`), again
and again until its deadline: it finishes there, its KV is copied just in time, or it is computed again elsewhere. Copies run
one at a time on the machine's link, and a request waits while its KV is copied (the live mesh copies while it decodes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from spotwise.core.costs.cost_model import BatchShape, LinkCost, pairs
from spotwise.core.migration.deployment import RunningRequest
from spotwise.core.migration.interruption.arrangement import (
    Arrangement,
    DecodePace,
    Disposition,
    Notice,
    RemoteHolder,
    rearrange,
)
from spotwise.core.worker.sequences.sequence import Sequence
from spotwise.simulator.world.events import EventQueue
from spotwise.simulator.world.machine import Machine
from spotwise.simulator.world.settings import SimulatedMachine, WorldSettings

#: Seconds between two arrangements of a machine's requests.
ARRANGE_EVERY_S = 0.5


class MovableRequests(Protocol):
    """What a departure does with a request, by its number."""

    def take_off(self, number: int, output_tokens: int) -> None:
        """End its attempt; its KV is in transit then."""

    def put_on(self, number: int) -> None:
        """Let its next attempt begin, with its KV, on another machine."""

    def submit_again(self, number: int, output_tokens: int) -> None:
        """Have its prompt and so many output tokens computed again."""


@dataclass(slots=True)
class DepartureTotals:
    """Requests of machines that left: moved with their KV, computed again with the tokens that they had, and started again
    whose prompts were queued, computed or handed over."""

    moved: int = 0
    recomputed: int = 0
    restarted: int = 0


@dataclass(slots=True)
class Departure:
    """One machine's notice; `is_current` tells whether a sequence is its request's last attempt."""

    machine: Machine
    kind: SimulatedMachine
    deadline_s: float
    queue: EventQueue
    settings: WorldSettings
    requests: MovableRequests
    is_current: Callable[[Sequence], bool]
    totals: DepartureTotals
    _arranged: dict[str, Arrangement] = field(default_factory=dict)
    _link_free_s: float = 0.0

    def arrange(self, _: None = None) -> None:
        """Decide about all requests that decode there, and again later."""
        now = self.queue.now
        if self.machine.has_left or now >= self.deadline_s:
            return
        held = {each.choice_id: each for each in self.machine.sequences() if self._can_move(each)}
        running = [
            RunningRequest(each.choice_id, each.computed_tokens, remaining=each.remaining_tokens_here)
            for each in held.values()
        ]
        arranged = rearrange(now, self._notice(list(held.values())), (), running)
        self._arranged = {each.choice_id: each for each in arranged}
        for each in arranged:
            begin_s = each.stop_s if each.copy_start_s is None else each.copy_start_s
            if each.disposition is not Disposition.FINISH and begin_s < now + ARRANGE_EVERY_S:
                self.queue.at(max(now, begin_s), self._begin, each)
        self.queue.at(min(now + ARRANGE_EVERY_S, self.deadline_s), self.arrange)

    def _can_move(self, sequence: Sequence) -> bool:
        return bool(sequence.computed_tokens and sequence.output_tokens and sequence.decodes_here) and self.is_current(
            sequence
        )

    def _notice(self, decoding: list[Sequence]) -> Notice:
        cost = self.kind.machine_type.cost
        context = sum(sequence.known_tokens for sequence in decoding)
        step_s = cost.iteration_s(BatchShape(decodes=max(1, len(decoding)), decode_context=context))
        return Notice(
            self.deadline_s,
            DecodePace(self.machine.boundary_s - self.queue.now, step_s),
            LinkCost(self.machine.send_link.latency_s, self.kind.machine_type.link_bytes_per_s),
            self.settings.model.kv_token_bytes,
            RemoteHolder(lambda tokens: cost.iteration_s(BatchShape(tokens, pairs(0, tokens)))),
        )

    def _begin(self, arrangement: Arrangement) -> None:
        """Begin what was decided, unless it was decided anew, or the request has ended."""
        if self._arranged.get(arrangement.choice_id) is not arrangement or self.machine.has_left:
            return
        held = [
            each
            for each in self.machine.sequences()
            if each.choice_id == arrangement.choice_id and self._can_move(each)
        ]
        if not held:
            return
        number, tokens = int(arrangement.choice_id), held[0].output_tokens
        del self._arranged[arrangement.choice_id]
        if arrangement.disposition is Disposition.RECOMPUTE:
            self.totals.recomputed += 1
            self.requests.submit_again(number, tokens)
            return
        now = self.queue.now
        copy_s = held[0].computed_tokens * self.settings.model.kv_token_bytes / self.kind.machine_type.link_bytes_per_s
        self._link_free_s = max(now, self._link_free_s) + copy_s
        self.requests.take_off(number, tokens)
        self.queue.at(self._link_free_s + self.machine.send_link.latency_s, self._copied, number)

    def _copied(self, number: int) -> None:
        self.totals.moved += 1
        self.requests.put_on(number)
