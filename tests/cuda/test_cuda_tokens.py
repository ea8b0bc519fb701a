"""On a GPU the engine gives what transformers gives, with decodes recorded and not, whatever computes attention."""

from __future__ import annotations

import importlib.util
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig, MistralConfig, MixtralConfig

from spotwise.benchmarks.engine_agreement import compare
from spotwise.core.requests.names import AdapterRef
from spotwise.core.requests.sampling import SamplingParams
from spotwise.engine.engine import Engine
from spotwise.engine.model.adapter_files import read_adapter
from spotwise.engine.model.loading import EngineConfig
from tests.adapters import base_model, greedy, merged, save_adapter
from tests.cuda.on_device import load
from tests.unit.engine.tiny_models import VOCAB_SIZE, Driver, record, save_model

pytestmark = pytest.mark.cuda

NEW_TOKENS = 24
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 96,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LAYER_TYPES = ["sliding_attention", "full_attention"]
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SHAPE),
    "mistral": MistralConfig(**SHAPE, sliding_window=12),
    "gemma2": Gemma2Config(
        **SHAPE, head_dim=16, sliding_window=12, layer_types=LAYER_TYPES, attn_logit_softcapping=3.0
    ),
    "gpt2": GPT2Config(**SHAPE),
    "mixtral": MixtralConfig(**SHAPE, num_local_experts=4),
}


def prompts(count: int = 12, longest: int = 200) -> list[list[int]]:
    rng = random.Random(7)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def generated(folder: Path, device: torch.device) -> list[list[int]]:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.to(device)
    outputs = []
    for prompt in prompts():
        ids = torch.tensor([prompt], device=device)
        options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}
        output = model.generate(ids, attention_mask=torch.ones_like(ids), eos_token_id=None, **options)
        outputs.append(output[0, len(prompt) :].tolist())
    return outputs


def served(engine: Engine, chunk_tokens: int = 1 << 30, sampling: SamplingParams | None = None) -> list[list[int]]:
    driver = Driver(engine, chunk_tokens)
    for index, prompt in enumerate(prompts()):
        driver.add(record(str(index), prompt, sampling, max_new_tokens=NEW_TOKENS))
        driver.step()
    return list(driver.finish().values())


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_transformers_own_in_float32(name: str, tmp_path: Path, device: torch.device) -> None:
    """Whole prompts and chunks, decodes recorded and not; what cannot be recorded is computed."""
    folder = save_model(CONFIGS[name], tmp_path / name)
    engine = load(folder, device, decode_graphs=False)
    expected = generated(folder, device)
    assert engine.device == str(device) and engine.attention_name == "torch attention" and engine.graphs is None
    assert served(engine) == expected
    for chunk_tokens in (1 << 30, 29):
        recording = load(folder, device)
        assert served(recording, chunk_tokens) == expected
        assert recording.graphs is not None
        if name != "mixtral":  # whether experts can be recorded depends on how transformers runs them
            assert not recording.graphs.off and recording.graphs.recorded > 0


def test_adapters_share_batches_with_recorded_decodes(tmp_path: Path, device: torch.device) -> None:
    """Two adapters and none: the tokens of models with the adapter merged."""
    folder = save_model(CONFIGS["llama"], tmp_path / "llama")
    oracle = base_model(folder).to(device)
    adapters = {name: save_adapter(tmp_path / name, base_model(folder), seed) for seed, name in enumerate("ab")}
    refs = [None, *(AdapterRef(name, read_adapter(name, path).digest) for name, path in adapters.items())]
    engine = load(folder, device, adapters=tuple(adapters.items()))
    driver = Driver(engine, chunk_tokens=29)
    for index, prompt in enumerate(prompts()):
        request = record(str(index), prompt, max_new_tokens=NEW_TOKENS + index)
        driver.add(replace(request, adapter=refs[index % 3]))
        driver.step()
    found = driver.finish()
    merges = [None, *adapters.values()]
    for index, prompt in enumerate(prompts()):
        with merged(oracle, merges[index % 3]):
            assert found[f"{index}@1"] == greedy(oracle, prompt, NEW_TOKENS + index)


def test_seeded_sampling_does_not_depend_on_recording(tmp_path: Path, device: torch.device) -> None:
    """Replayed logits are sampled like computed ones."""
    folder = save_model(CONFIGS["llama"], tmp_path / "llama")
    sampling = SamplingParams(temperature=0.9, top_p=0.9, seed=3)
    texts = [served(load(folder, device, decode_graphs=graphs), sampling=sampling) for graphs in (True, False)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("decode_graphs", [False, True])
def test_flashinfer_agrees_with_transformers(tmp_path: Path, device: torch.device, decode_graphs: bool) -> None:
    """In bfloat16 likeliest tokens may differ where two are nearly as likely: nine of ten agree, where chance is one of 211."""
    if importlib.util.find_spec("flashinfer") is None:
        pytest.skip("flashinfer is not installed")
    if torch.cuda.get_device_capability(device) < (8, 0):
        pytest.skip("FlashInfer wants compute capability 8.0")
    # Heads of 64 numbers, three for queries for one for keys.
    folder = save_model(MistralConfig(**{**SHAPE, "hidden_size": 384}, sliding_window=12), tmp_path / "wide")
    assert load(folder, device, "bfloat16").attention_name == "FlashInfer attention", (
        "see the log for what its trial gave"
    )
    config = EngineConfig(folder, "bfloat16", str(device), kv_cache_bytes=64 << 20, decode_graphs=decode_graphs)
    *_, agreement = compare(config, prompts(), NEW_TOKENS)
    assert agreement.equal >= 0.9 * agreement.positions
    engine = load(folder, device, "bfloat16", decode_graphs=decode_graphs)
    texts = served(engine)
    if decode_graphs:
        assert engine.graphs is not None and not engine.graphs.off and engine.graphs.recorded > 0
    alone = load(folder, device, "bfloat16", decode_graphs=decode_graphs)
    assert sum(mine[0] == theirs[0] for mine, theirs in zip(texts, served(alone, 29), strict=True)) >= 9
