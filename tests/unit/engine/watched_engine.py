"""An engine that records its logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from spotwise.core.costs.batching import Batch
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.sampling import SampledToken
from spotwise.engine.engine import Engine
from tests.unit.engine.tiny_models import Driver

#: By sequence and index of the output token.
Logits = dict[tuple[str, int], torch.Tensor]


def note_logits(engine: Engine) -> list[NDArray[np.float32]]:
    """Return a list that receives the logits of each of the engine's forwards that has some."""
    noted: list[NDArray[np.float32]] = []
    forward = engine._forward

    def note(rows: Any, flat: Any, positions: Sequence[int]) -> torch.Tensor | None:
        logits = forward(rows, flat, positions)
        if logits is not None and len(logits):
            noted.append(logits.float().numpy().copy())
        return logits

    engine._forward = note  # type: ignore[method-assign]
    return noted


class Watch(Driver):
    """Keeps the logits from which each output token was sampled, by sequence and place in its output."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch, chunk_tokens: int = 1 << 30) -> None:
        super().__init__(engine, chunk_tokens)
        self.logits: Logits = {}
        self.offsets: dict[str, int] = {}
        forward, run = engine._forward, engine.run_iteration
        last: list[torch.Tensor] = []

        def keep(rows: Any, flat: Any, positions: Sequence[int]) -> torch.Tensor:
            logits = forward(rows, flat, positions)
            assert logits is not None  # it is no member of a group
            last[:] = [logits]
            return last[0].clone()

        def file(batch: Batch) -> tuple[SampledToken, ...]:
            tokens = run(batch)
            for token, row in zip(tokens, last[0], strict=True):
                name = token.sequence_id
                self.logits[name, self.offsets[name] + len(self.results[name])] = row.clone()
            return tokens

        monkeypatch.setattr(engine, "_forward", keep)
        monkeypatch.setattr(engine, "run_iteration", file)

    def add(self, request: RequestRecord) -> None:
        """Add a sequence, perhaps one that resumes after some of its output."""
        self.offsets[request.sequence_id] = len(request.output_token_ids)
        super().add(request)
