"""Machines and models with round numbers."""

from __future__ import annotations

from spotwise.core.costs.cost_model import LinearIterationCost, LinkCost
from spotwise.core.parallel.instances import ExecutionCost, InstanceType
from spotwise.core.parallel.layer_tables import LayerTables
from spotwise.core.parallel.model_partition import LayerMatrix, ModelDimensions
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.scaled_cost import ScaledCost
from tests.unit.core.parallel.profiles import round_profile

TABLES = LayerTables.from_profile(round_profile())

MODEL = ModelShape(
    name="ten",
    layers=10,
    hidden_size=100,
    layer_bytes=1_000_000,
    embedding_bytes=500_000,
    head_bytes=2_000_000,
    kv_layer_token_bytes=400,
    value_bytes=2,
)

WORKER = LinearIterationCost(0.010, 1e-4, 1e-7, 1e-3, 1e-5)


def engine_shape(layers: int = 10, kv_heads: int = 12, inputs: int = 1, inner: int = 200) -> ModelShape:
    """Return a model that the engine cuts, of two-byte numbers; heads are a panel wide, two query heads for each KV head.

    Args:
        inputs: of every matrix but the head, in place of the real numbers: fewer make it smaller.
        inner: columns between the MLP's matrices.
    """
    queries, keys, hidden, vocab = 64 * kv_heads, 32 * kv_heads, 160, 1000
    widths = ((queries, False), (keys, False), (keys, False), (hidden, True), (inner, False), (hidden, True))
    matrices = tuple(LayerMatrix(columns, inputs, gathers) for columns, gathers in widths)
    layer_bytes = 2 * sum(each.columns * each.inputs for each in matrices)
    head_bytes = 2 * vocab * hidden
    partition = ModelDimensions(
        layers, 2 * kv_heads, kv_heads, 32, 32, hidden, inner, vocab, head_bytes / layer_bytes, matrices
    )
    return ModelShape("cut", layers, hidden, layer_bytes, 5000, head_bytes, 2 * 2 * keys, 2, partition)


def scaled(
    *,
    model: ModelShape = MODEL,
    link: LinkCost | None = None,
    hop: LinkCost | None = None,
    unsharded_s: float = 0.0,
    slower: float = 1.0,
) -> ScaledCost:
    """Return a cost on links that carry 1 MB a second after a millisecond, by default."""
    worker = LinearIterationCost(0.010 * slower, 1e-4 * slower, 1e-7 * slower, 1e-3 * slower, 1e-5 * slower)
    usual = LinkCost(1e-3, 1e6)
    return ScaledCost(worker, model, link or usual, hop or usual, context_tokens=50, unsharded_s=unsharded_s)


def machine(
    name: str = "a",
    devices: int = 4,
    *,
    spot: float | None = 1.0,
    on_demand: float | None = 3.0,
    cost: ExecutionCost = TABLES,
    memory_bytes: int = 1 << 30,
) -> InstanceType:
    """Return a type of machine."""
    return InstanceType(name, devices, memory_bytes, spot, on_demand, cost)
