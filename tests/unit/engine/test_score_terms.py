from __future__ import annotations

import math

import pytest
import torch

from spotwise.engine.model.attention_interface import LayerAttention
from spotwise.engine.model.score_terms import ScoreTerms, featured_causal_attention

HEADS, KV_HEADS, DIM = 4, 2, 8
CPU = torch.device("cpu")
LAYERS = {
    "plain": LayerAttention(0.3),
    "window": LayerAttention(0.3, window=7),
    "window of a tile and more": LayerAttention(0.3, window=90),
    "window of one": LayerAttention(0.3, window=1),
    "soft cap": LayerAttention(0.9, softcap=1.5),
    "slopes": LayerAttention(0.3, alibi_slopes=(0.5, 0.25, 0.125, 0.0625)),
    "sinks": LayerAttention(0.3, sinks=(0.5, -1.0, 2.0, 0.0)),
    "all": LayerAttention(0.9, 33, 2.0, (0.5, 0.25, 0.125, 0.0625), (0.5, -1.0, 2.0, 0.0)),
}


def score(layer: LayerAttention, product: float, head: int, distance: int) -> float:
    """The law of `layer_attention`, one number at a time."""
    result = layer.scaling * product
    if layer.softcap is not None:
        result = layer.softcap * math.tanh(result / layer.softcap)
    if layer.alibi_slopes is not None:
        result -= layer.alibi_slopes[head] * distance
    return -math.inf if layer.window is not None and distance >= layer.window else result


def attend_one(
    layer: LayerAttention, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, head: int
) -> torch.Tensor:
    """Return what the last position of `keys` `[context, dim]` attends to, in float64."""
    last = len(keys) - 1
    products = (keys.double() @ query.double()).tolist()
    terms = [math.exp(score(layer, product, head, last - at)) for at, product in enumerate(products)]
    total = sum(terms) + (0.0 if layer.sinks is None else math.exp(layer.sinks[head]))
    return torch.tensor(terms, dtype=torch.float64) @ values.double() / total


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize(("tokens", "context"), [(1, 1), (5, 5), (1, 40), (150, 150), (70, 150)])
def test_tiles_follow_the_law_of_a_layer(layer: LayerAttention, tokens: int, context: int) -> None:
    """Every query of a prompt or of its last chunk gets what the formula gives, number by number."""
    torch.manual_seed(1)
    query = torch.randn(HEADS, tokens, DIM)
    key, value = torch.randn(KV_HEADS, context, DIM), torch.randn(KV_HEADS, context, DIM + 1)
    attended = featured_causal_attention(query, key, value, ScoreTerms(layer, CPU))
    assert attended.shape == (tokens, HEADS, DIM + 1)
    for head in range(HEADS):
        kv_head = head // (HEADS // KV_HEADS)
        for token in {0, tokens // 2, tokens - 1}:
            seen = context - tokens + token + 1
            expected = attend_one(layer, query[head, token], key[kv_head, :seen], value[kv_head, :seen], head)
            torch.testing.assert_close(attended[token, head].double(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_rows_of_different_lengths_do_not_see_their_padding(layer: LayerAttention) -> None:
    """Weights of rows that decode together are those of each alone, and zero where a row has no position."""
    torch.manual_seed(2)
    positions = torch.tensor([0, 19, 44])
    products = torch.randn(3, KV_HEADS, HEADS // KV_HEADS, 1, 48)
    terms = ScoreTerms(layer, CPU)
    together = terms.weights(products, positions[:, None, None] - torch.arange(48))
    for row, position in enumerate(positions.tolist()):
        alone = terms.weights(
            products[row : row + 1, ..., : position + 1], position - torch.arange(position + 1)[None, None]
        )
        torch.testing.assert_close(together[row : row + 1, ..., : position + 1], alone)
        assert not together[row, ..., position + 1 :].any()


def test_weights_come_in_the_type_of_the_products() -> None:
    """In bfloat16 the terms are still computed in float32: weights are the rounded ones, and not sums of rounded scores."""
    torch.manual_seed(3)
    products = torch.randn(1, KV_HEADS, HEADS // KV_HEADS, 5, 300).bfloat16()
    distance = (torch.arange(295, 300)[:, None] - torch.arange(300))[None]
    terms = ScoreTerms(LAYERS["all"], CPU)
    weights = terms.weights(products, distance)
    assert weights.dtype == torch.bfloat16
    assert torch.equal(weights, terms.weights(products.float(), distance).bfloat16())
