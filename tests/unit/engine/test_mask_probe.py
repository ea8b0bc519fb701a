from __future__ import annotations

import pytest
import torch
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from spotwise.engine.model.errors import UnsupportedModelError
from spotwise.engine.model.score_terms import MaskFunction, MaskProbe, seen_window


@pytest.mark.parametrize(
    ("mask_function", "window"),
    [
        (causal_mask_function, None),
        (sliding_window_causal_mask_function(1), 1),
        (sliding_window_causal_mask_function(99), 99),
        (sliding_window_causal_mask_function(100), None),
        (sliding_window_causal_mask_function(4096), None),
        (chunked_causal_mask_function(100, torch.zeros(1, dtype=torch.int64)), None),
    ],
)
def test_a_window_is_read_from_the_mask_itself(mask_function: MaskFunction, window: int | None) -> None:
    """In a context of 100 positions a window or a chunk of as many is none."""
    assert seen_window(mask_function, 100) == window


@pytest.mark.parametrize(
    "mask_function",
    [
        bidirectional_mask_function,
        chunked_causal_mask_function(32, torch.zeros(1, dtype=torch.int64)),
        sliding_window_causal_mask_function(0),
        lambda batch, head, query, key: (key <= query) & ((key < 4) | (key > query - 8)),
    ],
    ids=["both directions", "chunks", "nothing", "first positions and a window"],
)
def test_another_pattern_is_refused(mask_function: MaskFunction) -> None:
    """A mask that is neither causal nor a window cannot be computed."""
    with pytest.raises(UnsupportedModelError, match="sliding window"):
        seen_window(mask_function, 100)


def test_a_mask_that_was_not_made_here_is_refused() -> None:
    """A finished mask may hold anything; none at all hides nothing."""
    probe = MaskProbe(100)
    assert probe.window(None) is None
    with pytest.raises(UnsupportedModelError, match="of its own"):
        probe.window(torch.zeros(1, 1, 3, 3))
