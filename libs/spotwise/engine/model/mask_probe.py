"""Reads a layer's sliding window from the mask function that transformers builds its mask from.

The mask is what `generate` computes with; windows named elsewhere may differ from it. Only masks that a layer receives count;
a mask is recognized by its storage, since a model may slice it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionMaskInterface, PreTrainedModel

from spotwise.engine.model.attention_interface import ATTENTION_NAME, PROBE_NAME
from spotwise.engine.model.errors import UnsupportedModelError

MaskFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class MaskProbe:
    """Builds the masks of one forward over a short sequence and maps each mask to its mask function."""

    def __init__(self, context_length: int) -> None:
        self._context_length = context_length
        self._built: list[tuple[torch.Tensor, MaskFunction | None]] = []

    def window(self, attention_mask: torch.Tensor | None) -> int | None:
        """Return the sliding window of a mask that a layer received; `None`: full causal attention.

        Raises:
            UnsupportedModelError: this probe did not build the mask, or it is neither full nor a window.
        """
        if attention_mask is None:
            return None
        for mask, function in self._built:
            if mask.untyped_storage().data_ptr() == attention_mask.untyped_storage().data_ptr():
                if function is None:
                    raise UnsupportedModelError(
                        "the model adds a pattern of its own to its attention mask, which is not supported"
                    )
                return seen_window(function, self._context_length, mask.device)
        raise UnsupportedModelError(
            "the model builds an attention mask of its own (ALiBi, for one), which is not supported"
        )

    @contextmanager
    def installed(self, model: PreTrainedModel) -> Iterator[None]:
        """Make `model` build its masks here; its attention calls stay unchanged."""
        AttentionMaskInterface.register(PROBE_NAME, self._build)
        model.config._attn_implementation = PROBE_NAME
        try:
            yield
        finally:
            model.config._attn_implementation = ATTENTION_NAME

    def _build(
        self,
        *,
        q_length: int,
        kv_length: int,
        mask_function: MaskFunction,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        use_vmap: bool = False,
        **_: Any,
    ) -> torch.Tensor:
        """Return a mask `[1, 1, q_length, kv_length]` that hides nothing; transformers defines the signature."""
        mask = torch.zeros(1, 1, q_length, kv_length, dtype=dtype, device=device)
        # transformers sets use_vmap where a model combined the function with its own, which may do anything
        self._built.append((mask, None if use_vmap else mask_function))
        return mask


def seen_window(mask_function: MaskFunction, context_length: int, device: torch.device | str = "cpu") -> int | None:
    """Return the sliding window that `mask_function` computes, a query's own key included; `None`: full causal attention.

    Raises:
        UnsupportedModelError: the function computes neither.
    """
    first = torch.zeros(1, 1, dtype=torch.int64, device=device)
    keys = torch.arange(context_length, device=device)[None]
    queries = keys[:, -2:].transpose(0, 1)
    seen = mask_function(first, first, queries, keys).expand(len(queries), context_length)
    distance = queries - keys
    window = int(seen[-1].sum())
    if torch.equal(seen, distance >= 0):
        return None
    if window > 0 and torch.equal(seen, (distance >= 0) & (distance < window)):
        return window
    raise UnsupportedModelError(
        "a layer sees neither all earlier positions nor a sliding window of them, which is not supported"
    )
