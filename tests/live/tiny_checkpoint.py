"""A model of random weights with the default model's tokenizer: loads in a second, and its files may be damaged at will."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from tests.live.oracle import model_folder

WEIGHTS = "model.safetensors"
UP_PROJECTION = "model.layers.1.mlp.up_proj.weight"
#: A shape of which M may be 2 and 4: so many KV heads, and as many columns for each shard.
FOUR_KV_HEADS = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")

Tensors = dict[str, torch.Tensor]


def write_tiny_model(folder: Path, **changes: Any) -> Path:
    """Write the model, always the same one; `changes` are those of its shape."""
    shape: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 96, "num_hidden_layers": 3}
    shape |= {"num_attention_heads": 6, "num_key_value_heads": 2, **changes}
    config = LlamaConfig(
        vocab_size=json.loads((model_folder() / "config.json").read_text())["vocab_size"],
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        initializer_range=0.2,  # large enough that the likeliest token depends on what came before
        **shape,
    )
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    auto.from_config(config, dtype=torch.float32).save_pretrained(folder)
    for name in _TOKENIZER_FILES:
        shutil.copyfile(model_folder() / name, folder / name)
    return folder


def change_tensors(folder: Path, change: Callable[[Tensors], object]) -> None:
    """Rewrite the weights after `change` had them."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def greedy_tokens(folder: Path, prompt: tuple[int, ...], new_tokens: int) -> tuple[int, ...]:
    """Return the greedy tokens of transformers for a single prompt in float32."""
    torch.set_num_threads(1)  # the mesh under test has the cores
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([prompt])
    settings = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False, "pad_token_id": 0}
    with torch.inference_mode():
        output = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    return tuple(output[0, len(prompt) :].tolist())
