"""A whole model of fused layers, without the model's own code around them: embedding, layers, final norm, head.

transformers' code between these takes a tenth of a small model's decode. What it does there is the same for all models of the
common form; whether it is for a given one, a trial says: logits must have the bits of the model's own.
"""

from __future__ import annotations

import inspect
from typing import Any, Self

import structlog
import torch

from spotwise.engine.forward.fused_layer import FusedDecoderLayer
from spotwise.engine.forward.iteration import FlatBatch
from spotwise.engine.forward.native_attention import NativeAttention, NativePlan
from spotwise.engine.forward.pooling import HeadInput

_log = structlog.get_logger(__name__)

_PARTS = {"embed_tokens", "layers", "norm", "rotary_emb"}
#: Kinds of rotary embeddings in which a position's angles do not depend on how long a context has become.
_FIXED_ROTARY = ("default", "linear", "llama3", "yarn")
_FEWEST_POSITIONS = 1024


class RotaryTable:
    """Cosines and sines by position, from the model's own module, of as many positions as have been needed.

    Args:
        module: a rotary embedding of transformers, of a kind in which positions do not depend on each other.
        dtype: dtype of the model.
    """

    def __init__(self, module: torch.nn.Module, dtype: torch.dtype) -> None:
        self._module = module
        self._dtype = dtype
        self._cosines: torch.Tensor | None = None
        self._sines = torch.empty(0)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines `[1, tokens, rotary_dim]` of positions `[1, tokens]`."""
        most = int(positions.max()) + 1
        if self._cosines is None or most > len(self._cosines):
            count = max(_FEWEST_POSITIONS, 1 << (most - 1).bit_length())
            cosines, sines = self._module(torch.empty(0, dtype=self._dtype), position_ids=torch.arange(count)[None])
            self._cosines, self._sines = cosines[0].contiguous(), sines[0].contiguous()
        return self._cosines.index_select(0, positions[0])[None], self._sines.index_select(0, positions[0])[None]


class ModelDecoder:
    """Computes logits by the model's own code.

    Args:
        model: with its attention context.
        head_input: what its head reads.
    """

    def __init__(self, model: Any, head_input: HeadInput) -> None:
        self.model = model
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.head_input = head_input

    def __call__(self, token_ids: torch.Tensor, position_ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        """Run over `[1, tokens]`, the rows of the context's plan, and return logits `[kept, vocab_size]` at the flat positions
        `keep`.
        """
        is_read = self.head_input.is_read
        options = {"logits_to_keep": keep} if self._keeps_logits and not is_read else {}
        output = self.model(input_ids=token_ids, position_ids=position_ids, use_cache=False, **options)
        logits: torch.Tensor = output.logits[0]
        return logits if self._keeps_logits or is_read else logits[keep]


class FusedDecoder:
    """Computes logits like a model all of whose layers are fused.

    Args:
        own: the model's own code, for forwards whose hidden states are read.
        base: the model without its head.
        head: its output embedding.
    """

    def __init__(self, own: ModelDecoder, base: Any, head: torch.nn.Module) -> None:
        first, *others = base.layers
        self._own = own
        self._embed, self._norm, self._head = base.embed_tokens, base.norm, head
        self._layers = first.followed_by(others)
        self._rotary = RotaryTable(base.rotary_emb, base.dtype)

    @classmethod
    @torch.inference_mode()
    def of(cls, own: ModelDecoder, context: NativeAttention, probe: FlatBatch[NativePlan]) -> Self | None:
        """Return what computes a model's logits; `None` where it has other parts, or the trial other bits.

        Args:
            own: the code of the model, which is rewritten; its attention context is `context`.
            context: its cache is still free: the trial overwrites the probe's blocks.
            probe: rows whose logits are compared.
        """
        model = own.model
        base, head = getattr(model, "model", None), model.get_output_embeddings()
        if base is None or head is None or {name for name, _ in base.named_children()} != _PARTS:
            return None
        layers = list(base.layers)
        if len(layers) != model.config.num_hidden_layers or not all(type(each) is FusedDecoderLayer for each in layers):
            return None
        if getattr(base.rotary_emb, "rope_type", None) not in _FIXED_ROTARY:
            return None
        decoder = cls(own, base, head)
        trial = probe.token_ids, probe.position_ids, torch.arange(probe.token_ids.shape[1])
        context.plan = probe.plan
        try:
            agrees = torch.equal(decoder(*trial), own(*trial))
        finally:
            context.plan = None
        if not agrees:
            _log.info("decoder_not_fused", type=type(model).__name__)
        return decoder if agrees else None

    def __call__(self, token_ids: torch.Tensor, position_ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        """As `ModelDecoder`."""
        if self._own.head_input.is_read:
            return self._own(token_ids, position_ids, keep)
        hidden = self._layers.compute(self._embed(token_ids), self._rotary.at(position_ids))
        logits: torch.Tensor = self._head(self._norm(hidden[0].index_select(0, keep)))
        return logits
