"""Whether a prompt's KV leaves after its prefill, or layer by layer during it.

Law: sent afterwards, a prompt's KV is late by all its bytes; sent meanwhile, by its last layers, but in more messages, and
the engine has to tell of its layers. Which costs less is measured for each pair of workers, not known beforehand: both kinds
of push have a line of visible seconds over bytes (`LinkCost`), the layer-wise one beside what its notices take of the
engine's time. A prompt goes the way that its size makes cheaper. A pair of which only one line is known tries the other, and
now and then a prompt goes the dearer way, so that neither line grows old.

Source: serialized for small prompts, per layer for large ones, Splitwise section 4.3, where the crossover is 512 tokens of an
H100.

Invariants: the answer depends on what was measured and on how many pushes were chosen before; a mode that was forced is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spotwise.core.cost_model import LinkCost
from spotwise.core.latest import LatestDict

#: One prompt in so many, of a pair, goes the other way.
REFRESH_EVERY = 32
#: Token workers whose costs are remembered.
WORKERS_REMEMBERED = 1024
#: Weight of the newest hand-off in what a prompt token costs.
_NEWEST = 0.25


class PushMode(StrEnum):
    """When a prompt's KV is sent."""

    SERIAL = "serial"  #: after its prefill
    LAYERWISE = "layerwise"  #: as its layers and blocks are computed


class ConfiguredPushMode(StrEnum):
    """How a worker was told to send."""

    AUTO = "auto"  #: as measured
    SERIAL = "serial"
    LAYERWISE = "layerwise"


@dataclass(frozen=True, slots=True)
class PushCosts:
    """What pushes to one worker cost lately.

    Attributes:
        serial: seconds from the end of a prompt to its KV there, by bytes, of serial pushes; `None` where there was none.
        layerwise: the same of layer-wise ones.
        notices_s: seconds that the engine's thread spends on telling of the layers of one iteration.
    """

    serial: LinkCost | None = None
    layerwise: LinkCost | None = None
    notices_s: float = 0.0

    def cheaper(self, kv_bytes: int) -> PushMode:
        """Return how to send so many bytes; where one way is unknown, that one."""
        if self.serial is None:
            return PushMode.SERIAL
        if self.layerwise is None:
            return PushMode.LAYERWISE
        layerwise_s = self.layerwise.transfer_s(kv_bytes) + self.notices_s
        return PushMode.LAYERWISE if layerwise_s < self.serial.transfer_s(kv_bytes) else PushMode.SERIAL


class PushPolicy:
    """Chooses for one worker's prompts.

    Args:
        told: the worker's setting.

    Attributes:
        token_s: visible seconds that handing off KV costs per prompt token, lately; `None` before the first.
    """

    def __init__(self, told: ConfiguredPushMode) -> None:
        self.token_s: float | None = None
        self._told = told
        self._costs = LatestDict[str, PushCosts](WORKERS_REMEMBERED)
        self._chosen = LatestDict[str, int](WORKERS_REMEMBERED)
        self._bytes_per_token = 0.0

    def choose(self, worker_id: str, tokens: int) -> PushMode:
        """Return how a prompt of so many tokens goes to that worker."""
        if self._told is not ConfiguredPushMode.AUTO:
            return PushMode(self._told.value)
        costs = self._costs.get(worker_id, PushCosts())
        cheaper = costs.cheaper(round(tokens * self._bytes_per_token))
        self._chosen[worker_id] = self._chosen.get(worker_id, 0) + 1
        if self._chosen[worker_id] % REFRESH_EVERY:
            return cheaper
        return PushMode.SERIAL if cheaper is PushMode.LAYERWISE else PushMode.LAYERWISE

    def measured(self, worker_id: str, costs: PushCosts) -> None:
        """Learn what pushes to a worker cost."""
        self._costs[worker_id] = costs

    def delivered(self, tokens: int, kv_bytes: int, visible_s: float) -> None:
        """Learn from a hand-off of so many tokens."""
        self._bytes_per_token = kv_bytes / tokens
        token_s = visible_s / tokens
        self.token_s = token_s if self.token_s is None else self.token_s + _NEWEST * (token_s - self.token_s)
