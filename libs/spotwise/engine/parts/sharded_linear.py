"""Linear layers of which this process computes some output columns, for layers that no single native call computes."""

from __future__ import annotations

import torch

from spotwise.engine.native.shard import Shard


class GatheredLinear(torch.nn.Module):
    """A linear layer that takes and returns whole rows where each shard has, and computes, a part of their columns.

    Args:
        linear: computes this shard's output columns from whole inputs.
        shard: this process's shard of the stage.
        inputs, outputs: columns of the whole layer.
        by_heads: inputs are cut by heads.
    """

    def __init__(self, linear: torch.nn.Module, shard: Shard, inputs: int, outputs: int, *, by_heads: bool) -> None:
        super().__init__()
        self._linear = linear
        self._shard = shard
        self._input_bounds = shard.head_bounds(inputs) if by_heads else shard.column_bounds(inputs)
        self._output_bounds = shard.column_bounds(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[..., outputs]` for this shard's columns of `[..., inputs]`; raises `GroupBrokenError`."""
        whole = _placed(x, self._input_bounds, self._shard)
        self._shard.gather(whole, self._input_bounds)
        out = _placed(self._linear(whole), self._output_bounds, self._shard)
        self._shard.gather(out, self._output_bounds)
        return out


class GatheredHead(torch.nn.Module):
    """The head of which each shard computes some columns of the vocabulary; only shard 0 returns all of them.

    Args:
        linear: computes this shard's columns.
        shard: this process's shard of the stage.
        vocab_size: columns of the whole head.
    """

    def __init__(self, linear: torch.nn.Module, shard: Shard, vocab_size: int) -> None:
        super().__init__()
        self._linear = linear
        self._shard = shard
        self._bounds = shard.column_bounds(vocab_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits `[..., vocab_size]`, at shard 0; raises `GroupBrokenError`."""
        out = _placed(self._linear(x), self._bounds, self._shard)
        self._shard.gather(out, self._bounds, root=0)
        return out


def _placed(part: torch.Tensor, bounds: tuple[int, ...], shard: Shard) -> torch.Tensor:
    """Return whole rows with this shard's columns in their place."""
    whole = part.new_empty((*part.shape[:-1], bounds[-1]))
    whole[..., bounds[shard.index] : bounds[shard.index + 1]] = part
    return whole
