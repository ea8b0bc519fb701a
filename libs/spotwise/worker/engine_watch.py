"""Watches a worker's engine: an iteration, a call or a KV swap that does not end makes the process stuck."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from spotwise.core.costs.cost_model import BatchShape, IterationTime
from spotwise.mesh.process.watchdog import Watchdog, WatchedPart

#: Iterations that end before the bound is taken from measurements.
WARM_UP = 8
#: Floors that an iteration without measurements may take.
UNMEASURED = 10
#: Times that an iteration may take longer than those before it did: contexts grow, and machines are shared.
SLACK = 20
#: Weight of the past at each measurement; it is forgotten within some dozens of iterations.
_KEPT = 0.95


class IterationBound:
    """Time limit of one engine's iterations, beyond which it counts as stuck: `floor_s` at least.

    Prompts have `UNMEASURED` times the floor until one was measured, and all iterations until `WARM_UP` have ended: the first
    ones compile kernels, allocate memory or wait for weights. Afterwards it is `SLACK` times what as many tokens took of late,
    where that is longer than the floor.
    """

    def __init__(self, floor_s: float) -> None:
        self._floor_s = floor_s
        self._ended = 0
        self._decode_s = 0.0
        self._prompt_s = 0.0
        self._prompt_tokens = 0.0

    def limit_s(self, shape: BatchShape) -> float:
        """Return the bound of an iteration in seconds."""
        is_unmeasured = shape.prompt_tokens and not self._prompt_tokens
        if self._ended < WARM_UP or is_unmeasured:
            return UNMEASURED * self._floor_s
        prompt_s = shape.prompt_tokens * self._prompt_s / self._prompt_tokens if shape.prompt_tokens else 0.0
        return max(self._floor_s, SLACK * (self._decode_s + prompt_s))

    def ended(self, shape: BatchShape, seconds: float) -> None:
        """Note how long an iteration took."""
        self._ended += 1
        if shape.prompt_tokens:
            self._prompt_s = self._prompt_s * _KEPT + seconds
            self._prompt_tokens = self._prompt_tokens * _KEPT + shape.prompt_tokens
        else:
            self._decode_s = max(self._decode_s * _KEPT, seconds)


class EngineWatch:
    """The watch over one engine, or one part of an engine.

    Args:
        watchdog: the process's watchdog.
        owner_id: id of the member that the engine computes for.
        timeout_s: bound of an iteration at least (`IterationBound`).
        patience: times that all bounds are longer, where others find what is stuck first.
    """

    def __init__(self, watchdog: Watchdog, owner_id: str, timeout_s: float, patience: int = 1) -> None:
        self._watchdog = watchdog
        self._timeout_s = patience * timeout_s
        self._bound = IterationBound(self._timeout_s)
        self._engine = watchdog.part(f"{owner_id}: engine", self._timeout_s)
        self._swaps = watchdog.part(f"{owner_id}: KV swaps", self._timeout_s)

    def is_among(self, stuck: Sequence[WatchedPart]) -> bool:
        """Whether the engine is one of these parts."""
        return self._engine in stuck or self._swaps in stuck

    def ordered(self, shape: BatchShape) -> None:
        """Note that an iteration was ordered."""
        self._engine.begin(self._bound.limit_s(shape))

    def ended(self, time: IterationTime | None) -> None:
        """Note that the oldest iteration ended; `None`: it failed."""
        self._engine.end()
        if time is not None:
            self._bound.ended(time.shape, time.seconds)

    def dropped(self) -> None:
        """Note that the engine is lost: nothing is under way, and another one takes its place."""
        self._engine.drop()
        self._bound = IterationBound(self._timeout_s)

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Watch a call of the engine, which waits for the iterations before it."""
        with self._engine.work():
            yield

    def waits(self, for_others: bool) -> None:
        """Note whether its thread waits for other members of its group now."""
        self._engine.waits = for_others

    def swap_began(self) -> None:
        """Note that a KV swap was ordered."""
        self._swaps.begin()

    def swap_ended(self) -> None:
        """Note that a KV swap ended."""
        self._swaps.end()

    def close(self) -> None:
        """Watch no more."""
        for part in (self._engine, self._swaps):
            self._watchdog.forget(part)
