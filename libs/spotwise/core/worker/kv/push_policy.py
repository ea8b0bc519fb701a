"""Chooses between a serial push of a prompt's KV after its prefill and a layer-wise push during it.

Law: a serial push is late by all its bytes; a layer-wise push by its last layers, but it costs messages and engine notices.
Visible seconds of both are measured per pair of workers (`LinkCost`), and a prompt goes the cheaper way for its size.
A mode without measurements is tried, and every `REFRESH_EVERY`-th prompt takes the dearer mode, so that neither grows stale.
Source: serial for small prompts, per layer for large ones, Splitwise, section 4.3 (crossover at 512 tokens on an H100).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spotwise.core.costs.cost_model import LinkCost
from spotwise.core.latest import LatestDict
from spotwise.core.messages.hand_offs import PushMode
from spotwise.core.worker.scheduling.chunked_prefill import TokenRate

#: One prompt in so many, of a pair, takes the other mode.
REFRESH_EVERY = 32
#: Token workers whose costs are remembered.
WORKERS_REMEMBERED = 1024


class ConfiguredPushMode(StrEnum):
    """The push mode that a worker is configured with."""

    AUTO = "auto"  #: whichever was measured cheaper
    SERIAL = "serial"
    LAYERWISE = "layerwise"


@dataclass(frozen=True, slots=True)
class PushCosts:
    """Recent visible seconds (from the prompt's end to its KV there) of pushes to one worker, by bytes; `None` before one.

    `notices_s`: seconds of the engine's thread for one iteration's layer notices.
    """

    serial: LinkCost | None = None
    layerwise: LinkCost | None = None
    notices_s: float = 0.0

    def cheaper(self, kv_bytes: int) -> PushMode:
        """Return the cheaper mode for so many bytes, or one without measurements."""
        if self.serial is None:
            return PushMode.SERIAL
        if self.layerwise is None:
            return PushMode.LAYERWISE
        layerwise_s = self.layerwise.transfer_s(kv_bytes) + self.notices_s
        return PushMode.LAYERWISE if layerwise_s < self.serial.transfer_s(kv_bytes) else PushMode.SERIAL


class PushPolicy:
    """Chooses the push mode of prompts; `rate`: recent visible seconds a prompt token."""

    def __init__(self, configured: ConfiguredPushMode) -> None:
        self.rate = TokenRate()
        self._configured = configured
        self._costs = LatestDict[str, PushCosts](WORKERS_REMEMBERED)
        self._chosen = LatestDict[str, int](WORKERS_REMEMBERED)
        self._bytes_per_token = 0.0

    def choose(self, worker_id: str, tokens: int) -> PushMode:
        """Return the push mode of a prompt of so many tokens to that worker."""
        if self._configured is not ConfiguredPushMode.AUTO:
            return PushMode(self._configured.value)
        costs = self._costs.get(worker_id, PushCosts())
        cheaper = costs.cheaper(round(tokens * self._bytes_per_token))
        self._chosen[worker_id] = self._chosen.get(worker_id, 0) + 1
        if self._chosen[worker_id] % REFRESH_EVERY:
            return cheaper
        return PushMode.SERIAL if cheaper is PushMode.LAYERWISE else PushMode.LAYERWISE

    def measured(self, worker_id: str, costs: PushCosts) -> None:
        """Take measured costs of pushes to a worker."""
        self._costs[worker_id] = costs

    def delivered(self, tokens: int, kv_bytes: int, visible_s: float) -> None:
        """Learn from a hand-off of so many tokens."""
        self._bytes_per_token = kv_bytes / tokens
        self.rate.saw(tokens, visible_s)
