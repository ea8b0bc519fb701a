"""LoRA adapters with random weights in PEFT's layout, and models with them merged into their weights: the tests' own oracle."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def base_model(model_folder: Path) -> Any:
    """The model as transformers has it, in float32."""
    auto: Any = AutoModelForCausalLM
    return auto.from_pretrained(model_folder, dtype=torch.float32, attn_implementation="eager").eval()


def save_adapter(
    folder: Path,
    model: Any,
    seed: int,
    targets: Sequence[str] = ALL,
    rank: int = 4,
    alpha: float = 8.0,
    effect: float = 0.5,
    **config: Any,
) -> Path:
    """Write an adapter for all layers of a model, by which each matrix changes by `effect` of its norm."""
    random = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    ranks = config.get("rank_pattern", {})
    for path, module in model.named_modules():
        if path.rpartition(".")[2] not in targets:
            continue
        outputs, inputs = _weight(module).shape
        own = next((each for pattern, each in ranks.items() if re.match(rf"(.*\.)?({pattern})$", path)), rank)
        down = torch.randn(own, inputs, generator=random) / inputs**0.5
        up = torch.randn(outputs, own, generator=random)
        up *= effect * _weight(module).norm() / (alpha / own * (up @ down)).norm()
        tensors |= {f"base_model.model.{path}.lora_A.weight": down, f"base_model.model.{path}.lora_B.weight": up}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "r": rank,
                "lora_alpha": alpha,
                "target_modules": list(targets),
                "bias": "none",
                "modules_to_save": None,
                "fan_in_fan_out": False,
                "init_lora_weights": True,
                "use_rslora": False,
                "use_dora": False,
                "rank_pattern": {},
                "alpha_pattern": {},
                "layers_to_transform": None,
            }
            | config
        )
    )
    return folder


@contextlib.contextmanager
def merged(model: Any, adapter: Path | None) -> Iterator[None]:
    """The model has `scale * B @ A` added to its weights, as PEFT's documentation defines it, inside the block."""
    if adapter is None:
        yield
        return
    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    before: dict[str, torch.Tensor] = {}
    for name, down in tensors.items():
        if not name.endswith(".lora_A.weight"):
            continue
        path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        up = tensors[name.replace("lora_A", "lora_B")]
        alpha = next(
            (each for pattern, each in config["alpha_pattern"].items() if re.match(rf"(.*\.)?({pattern})$", path)),
            config["lora_alpha"],
        )
        scale = alpha / (len(down) ** 0.5 if config["use_rslora"] else len(down))
        weight = _weight(model.get_submodule(path)).data
        before[path] = weight.clone()
        weight += scale * (up @ down).to(weight.device)
    try:
        yield
    finally:
        for path, weight in before.items():
            _weight(model.get_submodule(path)).data.copy_(weight)


def greedy(model: Any, prompt: Sequence[int], new_tokens: int, **options: Any) -> list[int]:
    """The tokens that `generate` gives a prompt alone."""
    ids = torch.tensor([list(prompt)], device=model.device)
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            **options,
        )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


def _weight(module: Any) -> torch.Tensor:
    """A linear layer's weight as `[outputs, inputs]`, a view."""
    weight: torch.Tensor = module.weight
    return weight.t() if type(module) is Conv1D else weight
