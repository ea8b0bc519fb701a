from __future__ import annotations

import math

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)
from transformers.models.bloom.modeling_bloom import BloomAttention

from spotwise.engine.model.attention_interface import LayerAttention
from spotwise.engine.model.bloom import InterfacedBloomAttention, adapt_bloom, alibi_slopes
from spotwise.engine.model.errors import UnsupportedModelError
from spotwise.engine.model.score_terms import (
    MaskFunction,
    MaskProbe,
    ScoreTerms,
    featured_causal_attention,
    seen_window,
)

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
    with pytest.raises(UnsupportedModelError, match="sliding window"):
        seen_window(mask_function, 100)


def test_a_mask_that_was_not_made_here_is_refused() -> None:
    """A finished mask may hold anything; none at all hides nothing."""
    probe = MaskProbe(100)
    assert probe.window(None) is None
    with pytest.raises(UnsupportedModelError, match="of its own"):
        probe.window(torch.zeros(1, 1, 3, 3))


@pytest.mark.parametrize(
    ("layer", "plain"),
    [
        (LayerAttention(0.5), True),
        (LayerAttention(0.5, window=10), True),
        (LayerAttention(0.5, window=9), False),
        (LayerAttention(0.5, softcap=30.0), False),
        (LayerAttention(0.5, alibi_slopes=(0.5,)), False),
        (LayerAttention(0.5, sinks=(0.0,)), False),
    ],
)
def test_a_layer_is_plain_where_nothing_but_its_scaling_counts(layer: LayerAttention, plain: bool) -> None:
    """A window counts only in a context that is longer; everything else counts always."""
    assert layer.is_plain_within(10) is plain


def test_slopes_are_those_of_the_paper() -> None:
    """A geometric sequence from 2^(-8/n); for a number that is no power of two, every other one of twice as many fills up."""
    assert alibi_slopes(8) == pytest.approx([2.0**-step for step in range(1, 9)])
    assert alibi_slopes(6) == pytest.approx([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])


def test_only_attention_modules_are_replaced_and_weights_stay() -> None:
    """All layers of a BLOOM, none of anything else; a second time changes nothing."""
    model = BloomForCausalLM(BloomConfig(vocab_size=32, hidden_size=16, n_layer=2, n_head=2))
    weights = dict(model.named_parameters())
    adapt_bloom(model)
    adapt_bloom(model)
    adapted = [module for module in model.modules() if isinstance(module, BloomAttention)]
    assert [type(module) for module in adapted] == [InterfacedBloomAttention] * 2
    assert all(weights[name] is parameter for name, parameter in model.named_parameters())
    adapt_bloom(torch.nn.Linear(2, 2))
