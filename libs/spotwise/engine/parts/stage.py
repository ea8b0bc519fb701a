"""Runs one stage of a pipeline with the code of the whole model.

Layers of other stages are passed by. The activations of the stage before take the place of what the layer before the stage's
first returns; the layer behind the stage's last ends the forward. Embeddings, position embeddings and masks are computed by
each stage as the model does, from values that do not matter where another stage has the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spotwise.core.parallel.model_partition import ModelShare
from spotwise.engine.native.shard import Shard


class PipelineStage:
    """The stage that this process computes.

    Args:
        share: its position in the group.
        shard: its exchange.
        hidden_size: columns of an activation.
        dtype: number format of activations.
    """

    def __init__(self, share: ModelShare, shard: Shard, hidden_size: int, dtype: torch.dtype) -> None:
        #: What it computes.
        self.share = share
        self._shard = shard
        self._hidden_size = hidden_size
        self._dtype = dtype

    @property
    def samples(self) -> bool:
        """Whether this process has the logits: shard 0 of the last stage."""
        return self.share.is_last and self.share.shard == 0

    def install(self, model: Any, layers: torch.nn.ModuleList, *, returns_tuple: bool) -> None:
        """Replace the layers of other stages, and the embedding where another stage has it."""
        own = self.share.layers
        for index in range(len(layers)):
            if index not in own:
                layers[index] = _Passed(returns_tuple=returns_tuple)
        if not self.share.is_first:
            layers[own.start - 1] = _Received(self._receive, returns_tuple=returns_tuple)
            model.set_input_embeddings(_NoEmbedding(model.get_input_embeddings().embedding_dim, self._dtype))
        if not self.share.is_last:
            layers[own.stop] = _End()

    def run(self, forward: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        """Run the model's forward; return its logits in the process that samples, `None` in the others.

        Raises:
            GroupBrokenError: a member of the group is gone.
        """
        try:
            logits = forward()
        except _StageEnded as ended:
            self._shard.send(self.share.stage + 1, ended.activations.contiguous())
            return None
        return logits if self.samples else None

    def _receive(self, tokens: int) -> torch.Tensor:
        activations = torch.empty((1, tokens, self._hidden_size), dtype=self._dtype)
        self._shard.receive(self.share.stage - 1, activations)
        return activations


class _StageEnded(Exception):  # noqa: N818 - no error: it ends the forward behind the stage's last layer
    def __init__(self, activations: torch.Tensor) -> None:
        super().__init__()
        self.activations = activations


class _Passed(torch.nn.Module):
    """A layer of another stage: returns its input."""

    def __init__(self, *, returns_tuple: bool) -> None:
        super().__init__()
        self._returns_tuple = returns_tuple

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        activations = self.activations(args[0] if args else kwargs["hidden_states"])
        return (activations,) if self._returns_tuple else activations

    def activations(self, given: torch.Tensor) -> torch.Tensor:
        return given


class _Received(_Passed):
    """The layer before the stage's first: returns the activations of the stage before."""

    def __init__(self, receive: Callable[[int], torch.Tensor], *, returns_tuple: bool) -> None:
        super().__init__(returns_tuple=returns_tuple)
        self._receive = receive

    def activations(self, given: torch.Tensor) -> torch.Tensor:
        return self._receive(given.shape[1])


class _End(torch.nn.Module):
    """The layer behind the stage's last: ends the forward."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise _StageEnded(args[0] if args else kwargs["hidden_states"])


class _NoEmbedding(torch.nn.Module):
    """The embedding where another stage has it: zeros of its shape."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._width, self._dtype = width, dtype

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros((*token_ids.shape, self._width), dtype=self._dtype)
