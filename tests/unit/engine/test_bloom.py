from __future__ import annotations

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM
from transformers.models.bloom.modeling_bloom import BloomAttention

from spotwise.engine.model.bloom import InterfacedBloomAttention, adapt_bloom, alibi_slopes


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
