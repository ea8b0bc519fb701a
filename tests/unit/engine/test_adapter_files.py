"""An adapter's folder: what is read of it, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spotwise.engine.model.adapter_files import CONFIG_FILE, WEIGHTS_FILE, read_adapter
from spotwise.engine.model.errors import AdapterError
from tests.adapters import ATTENTION, base_model, save_adapter

LAYER = "base_model.model.model.layers.0"
QUERY = f"{LAYER}.self_attn.q_proj"


@pytest.fixture(scope="module")
def model(llama_folder: Path) -> Any:
    return base_model(llama_folder)


@pytest.fixture
def folder(tmp_path: Path, model: Any) -> Path:
    return save_adapter(tmp_path / "style", model, seed=1, targets=ATTENTION, rank=4, alpha=8)


def configure(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / CONFIG_FILE).read_text())
    (folder / CONFIG_FILE).write_text(json.dumps(config | changes))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    change(tensors)
    save_file(tensors, folder / WEIGHTS_FILE)


def test_modules_ranks_and_scales_are_read(folder: Path) -> None:
    """Of every layer, sorted by path; a module's scale is alpha over the rank."""
    files = read_adapter("style", folder)
    assert [module.path for module in files.modules] == sorted(
        f"model.layers.{layer}.self_attn.{target}" for layer in range(3) for target in ATTENTION
    )
    assert {(module.rank, module.scale) for module in files.modules} == {(4, 2.0)}
    assert files.targets == tuple(sorted(ATTENTION))


def test_patterns_and_rank_stabilised_scales(tmp_path: Path, model: Any) -> None:
    """As PEFT has them: the first pattern that fits the end of a path; alpha over the root of the rank."""
    patterns: dict[str, Any] = {
        "rank_pattern": {"layers.1.self_attn.q_proj": 9},
        "alpha_pattern": {"^model.layers.0.*k_proj": 2},
    }
    folder = save_adapter(tmp_path, model, seed=1, targets=ATTENTION, use_rslora=True, **patterns)
    scales = {module.path: (module.rank, module.scale) for module in read_adapter("style", folder).modules}
    assert scales["model.layers.1.self_attn.q_proj"] == (9, 8 / 3)
    assert scales["model.layers.0.self_attn.k_proj"] == (4, 1)
    assert scales["model.layers.1.self_attn.k_proj"] == (4, 4)


def test_the_digest_is_of_weights_and_scales(folder: Path) -> None:
    """Not of the name or of what describes the adapter."""
    digest = read_adapter("style", folder).digest
    configure(folder, base_model_name_or_path="elsewhere", lora_dropout=0.1)
    assert read_adapter("another", folder).digest == digest
    configure(folder, lora_alpha=9)
    scaled = read_adapter("style", folder).digest
    change_tensors(folder, lambda tensors: tensors[f"{QUERY}.lora_A.weight"].add_(1e-3))
    assert len({digest, scaled, read_adapter("style", folder).digest}) == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "lora_only"}, "biases"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"lora_bias": True}, "biases"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"r": 5}, "rank 5"),
        ({"r": 0}, "r in"),
        ({"lora_alpha": "much"}, "lora_alpha"),
        ({"rank_pattern": {"(": 4}}, "pattern"),
    ],
)
def test_an_adapter_of_another_kind_is_refused(folder: Path, changes: dict[str, Any], said: str) -> None:
    configure(folder, **changes)
    with pytest.raises(AdapterError, match="'style'") as refused:
        read_adapter("style", folder)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.clear(), "no tensors"),
        (lambda tensors: tensors.pop(f"{QUERY}.lora_B.weight"), "q_proj has lora_A alone"),
        (lambda tensors: tensors.update({f"{QUERY}.lora_magnitude_vector": torch.ones(96)}), "lora_magnitude_vector"),
        (lambda tensors: tensors.update({"lora_A.weight": torch.ones(4, 4)}), "lora_A.weight is no"),
        (lambda tensors: tensors.update({f"{QUERY}.lora_A.weight": torch.ones(4)}), "no matrix"),
        (lambda tensors: tensors.update({f"{QUERY}.lora_A.weight": torch.ones(4, 96).to(torch.int8)}), "I8"),
    ],
)
def test_other_tensors_are_refused(folder: Path, change: Callable[[dict[str, Any]], Any], said: str) -> None:
    """What would be left out, or cannot be multiplied."""
    change_tensors(folder, change)
    with pytest.raises(AdapterError) as refused:
        read_adapter("style", folder)
    assert said in str(refused.value)


@pytest.mark.parametrize("file", [CONFIG_FILE, WEIGHTS_FILE])
def test_missing_and_broken_files_are_named(folder: Path, file: str) -> None:
    (folder / file).write_bytes((folder / file).read_bytes()[:100])
    with pytest.raises(AdapterError, match=file):
        read_adapter("style", folder)
    (folder / file).unlink()
    with pytest.raises(AdapterError, match=f"has no {file}"):
        read_adapter("style", folder)
