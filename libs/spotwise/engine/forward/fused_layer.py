"""A decoder layer of the common form, or one shard of it, computed by one native call.

The form is that of Llama, Mistral, Qwen2, Qwen3, SmolLM: norm, grouped-query attention with rotary positions, norm, gated MLP,
two residuals. `rewriting.py` tries whether a layer really computes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import torch

from spotwise.engine.block_kinds import BlockKind, kinds_of_stack
from spotwise.engine.forward.layer_run import LayerRun
from spotwise.engine.forward.native_attention import NativeAttention
from spotwise.engine.model.attention_interface import LayerAttention
from spotwise.engine.native.library import FORMATS, LANES, Kernels, LayerFields
from spotwise.engine.native.norm import epsilon_of
from spotwise.engine.native.packed import BlockRows, PackedWeight, can_pack, interleaved
from spotwise.engine.native.shard import WHOLE, Shard
from spotwise.engine.native.weight_memory import PRIVATE, WeightMemory

#: Paths of the linear layers in a layer of the common form, by the matrix in which they are stacked.
STACKS: Mapping[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
_ACTIVATIONS = {"SiLUActivation": 0, "SiLU": 0, "GELUTanh": 1, "PytorchGELUTanh": 1}


@dataclass(frozen=True, slots=True)
class LayerParts:
    """The modules of a layer of the common form."""

    input_norm: torch.nn.Module
    query: torch.nn.Linear
    key: torch.nn.Linear
    value: torch.nn.Linear
    output: torch.nn.Linear
    query_norm: torch.nn.Module | None
    key_norm: torch.nn.Module | None
    post_norm: torch.nn.Module
    gate: torch.nn.Linear
    up: torch.nn.Linear
    down: torch.nn.Linear
    activation: int
    index: int


def find_parts(layer: torch.nn.Module) -> LayerParts | None:
    """Return the parts of a layer that looks like the common form, or `None`."""
    attention: Any = getattr(layer, "self_attn", None)
    mlp: Any = getattr(layer, "mlp", None)
    if {name for name, _ in layer.named_children()} != {
        "self_attn",
        "mlp",
        "input_layernorm",
        "post_attention_layernorm",
    }:
        return None
    names = {name for name, child in attention.named_children() if any(True for _ in child.parameters())}
    projections = {"q_proj", "k_proj", "v_proj", "o_proj"}
    if names not in (projections, projections | {"q_norm", "k_norm"}):
        return None
    if {name for name, child in mlp.named_children() if any(True for _ in child.parameters())} != {
        "gate_proj",
        "up_proj",
        "down_proj",
    }:
        return None
    activation = _ACTIVATIONS.get(type(mlp.act_fn).__name__)
    linears = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    if activation is None or not all(type(linear) is torch.nn.Linear and can_pack(linear.weight) for linear in linears):
        return None
    if any(linear.bias is not None for linear in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)):
        return None
    if mlp.down_proj.in_features % LANES or attention.o_proj.out_features % LANES:
        return None
    biases = [linear.bias is not None for linear in linears[:3]]
    if any(biases) and not all(biases):
        return None
    typed: Any = layer
    return LayerParts(
        input_norm=typed.input_layernorm,
        query=attention.q_proj,
        key=attention.k_proj,
        value=attention.v_proj,
        output=attention.o_proj,
        query_norm=getattr(attention, "q_norm", None),
        key_norm=getattr(attention, "k_norm", None),
        post_norm=typed.post_attention_layernorm,
        gate=mlp.gate_proj,
        up=mlp.up_proj,
        down=mlp.down_proj,
        activation=activation,
        index=int(attention.layer_idx),
    )


class BlockSource(Protocol):
    """Where weights that stay quantised are read."""

    def kind(self, name: str) -> BlockKind | None:
        """Return the kind of a parameter's blocks; `None`: it is not quantised."""
        ...

    def read_blocks(self, name: str) -> torch.Tensor:
        """Return the blocks of a parameter, `[rows, bytes]`."""
        ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The packed weights of a layer of the common form, or of one shard of it.

    Attributes:
        qkv: query, key and value projections, stacked.
        output: the attention's output projection.
        gate_up: gate and up projections, 16 columns of each in turn.
        down: the MLP's second projection.
    """

    qkv: PackedWeight
    output: PackedWeight
    gate_up: PackedWeight
    down: PackedWeight

    @classmethod
    def of(
        cls,
        kernels: Kernels,
        parts: LayerParts,
        memory: WeightMemory = PRIVATE,
        name: str = "",
        source: BlockSource | None = None,
    ) -> Self:
        """Pack a whole layer's weights into `memory`, named `name` and a suffix each; with a source, of which `name` is the
        layer's path in the model, those stay quantised that can.
        """

        def pack(part: str, *linears: torch.nn.Linear, order: np.ndarray | None = None) -> PackedWeight:
            names = [f"{name}.{path}.weight" for path in STACKS[part]]
            rows = [linear.out_features for linear in linears]
            kinds = () if source is None else _kinds(source, names, rows, order)
            if source is None or not kinds:
                weights = [linear.weight for linear in linears]
                return PackedWeight.of(kernels, weights, order, memory=memory, name=f"{name}.{part}")
            blocks = [
                BlockRows(kind, source.read_blocks(each), linears[0].in_features)
                for kind, each in zip(kinds, names, strict=True)
            ]
            dtype = linears[0].weight.dtype
            return PackedWeight.of_blocks(kernels, blocks, dtype, order, memory=memory, name=f"{name}.{part}")

        return cls(
            pack("qkv", parts.query, parts.key, parts.value),
            pack("output", parts.output),
            pack("gate_up", parts.gate, parts.up, order=interleaved(parts.gate.out_features)),
            pack("down", parts.down),
        )


def _kinds(
    source: BlockSource, names: Sequence[str], rows: Sequence[int], order: np.ndarray | None
) -> tuple[BlockKind, ...]:
    return kinds_of_stack([source.kind(name) for name in names], rows, interleaves=order is not None)


class FusedDecoderLayer(torch.nn.Module):
    """Replaces a decoder layer by one native call that updates `[1, tokens, hidden]` in place and returns it.

    Args:
        kernels: compute it.
        parts: modules of the original layer; weights of its linear layers are not read.
        weights: weights of the shard.
        attention: what the layer's attention computes, for the shard's heads.
        context: holds the plan of the rows, and the cache.
        is_last: this is the model's last layer, which with `NativePlan.last_only` computes only each row's last token.
        shard: the shard of the layer that this process computes.
    """

    def __init__(
        self,
        kernels: Kernels,
        parts: LayerParts,
        weights: LayerWeights,
        attention: LayerAttention,
        context: NativeAttention,
        *,
        is_last: bool,
        shard: Shard = WHOLE,
    ) -> None:
        super().__init__()
        self._kernels = kernels
        self._shard = shard
        self._context = context
        self._is_last = is_last
        #: Of the layer in the model.
        self.index = parts.index
        self._kept: list[torch.Tensor] = []
        cache = context.cache
        geometry = cache.geometry
        self._dtype = parts.query.weight.dtype
        self._hidden = hidden = parts.query.in_features
        intermediate = parts.down.in_features
        attended = parts.output.in_features
        query_rows = shard.heads(parts.query.out_features)
        key_rows, value_rows = shard.heads(parts.key.out_features), shard.heads(parts.value.out_features)
        qkv = [(parts.query, query_rows), (parts.key, key_rows), (parts.value, value_rows)]
        hidden_columns, inner_columns = shard.columns(hidden), shard.columns(intermediate)

        self._fields = LayerFields(
            format=FORMATS[self._dtype],
            heads=(query_rows.stop - query_rows.start) // geometry.key_dim,
            kv_heads=(key_rows.stop - key_rows.start) // geometry.key_dim,
            key_dim=geometry.key_dim,
            value_dim=geometry.value_dim,
            window=attention.window or 0,
            hidden=hidden,
            intermediate=intermediate,
            rotary_dim=geometry.key_dim,
            activation=parts.activation,
            attended=attended,
            first_attended=shard.heads(attended).start,
            own_hidden=hidden_columns.stop - hidden_columns.start,
            first_hidden=hidden_columns.start,
            own_inner=inner_columns.stop - inner_columns.start,
            first_inner=inner_columns.start,
            key_gap=weights.qkv.gaps[0],
            value_gap=weights.qkv.gaps[1],
            index=parts.index,
            scale=attention.scaling,
            softcap=attention.softcap or 0.0,
            epsilon=_epsilon(parts.input_norm),
            slopes=context.keep(attention.alibi_slopes),
            sinks=context.keep(attention.sinks),
            input_norm=self._keep(_norm_weight(parts.input_norm)),
            post_norm=self._keep(_norm_weight(parts.post_norm)),
            query_norm=None if parts.query_norm is None else self._keep(_norm_weight(parts.query_norm)),
            key_norm=None if parts.key_norm is None else self._keep(_norm_weight(parts.key_norm)),
            qkv_bias=None
            if parts.query.bias is None
            else self._keep(torch.cat([linear.bias[rows] for linear, rows in qkv])),
            output_bias=None if parts.output.bias is None else self._keep(parts.output.bias[hidden_columns]),
            qkv=self._keep_packed(weights.qkv),
            output=self._keep_packed(weights.output),
            gate_up=self._keep_packed(weights.gate_up),
            down=self._keep_packed(weights.down),
            query_kind=weights.qkv.kind_codes[0],
            key_kind=weights.qkv.kind_codes[1],
            value_kind=weights.qkv.kind_codes[2],
            output_kind=weights.output.kind_codes[0],
            gate_up_kind=weights.gate_up.kind_codes[0],
            down_kind=weights.down.kind_codes[0],
            keys=cache.layer_keys(parts.index).data_ptr(),
            values=cache.layer_values(parts.index).data_ptr(),
            kv_blocks=cache.num_blocks,
            gathering=shard.layer_gathering(kernels, attended, hidden, intermediate, self._dtype),
        )
        self._alone = self.followed_by(())

    def followed_by(self, others: Sequence[FusedDecoderLayer]) -> LayerRun:
        """Return a run of this layer and `others`, which follow it in the model and are in the same shard and context."""
        layers = (self, *others)
        fields = [layer._fields for layer in layers]
        return LayerRun(self._kernels, self._context, self._shard, fields, self._dtype, ends_model=layers[-1]._is_last)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        **_: Any,
    ) -> torch.Tensor:
        """Compute the layer for the rows of the context's plan.

        Args:
            hidden_states: `[1, tokens, hidden]`, overwritten.
            position_embeddings: cosine and sine, `[1, tokens, rotary_dim]` each.
        """
        return self._alone.compute(hidden_states, position_embeddings)

    def _keep_packed(self, weight: PackedWeight) -> int:
        self._kept.append(weight.data)
        return weight.data.data_ptr()

    def _keep(self, tensor: torch.Tensor) -> int:
        tensor = tensor.detach().to(self._dtype).contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()


def _norm_weight(norm: torch.nn.Module) -> torch.Tensor:
    weight: torch.Tensor = norm.weight  # type: ignore[assignment]
    return weight


def _epsilon(norm: torch.nn.Module) -> float:
    epsilon = epsilon_of(norm)
    if epsilon is None:
        raise ValueError(f"{type(norm).__name__} does not say its epsilon")
    return epsilon
