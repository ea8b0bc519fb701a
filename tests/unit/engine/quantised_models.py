"""Random blocks of each kind, and GGUF files of tiny models that consist of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from spotwise.engine.block_kinds import BLOCK_KINDS, BlockKind

HIDDEN, INNER, LAYERS, VOCABULARY = 256, 512, 2, 224
#: Half-precision numbers at the ends of what a scale can be: zeros, subnormal ones, the least normal ones, the largest, one.
EXTREME = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x8400, 0x7BFF, 0xFBFF, 0x3C00], dtype=np.uint16)
_HALVES: Mapping[str, tuple[int, ...]] = {"Q6_K": (208,), "Q8_0": (0,), "Q4_0": (0,)}


def random_blocks(
    kind: BlockKind, rows: int, inputs: int, seed: int = 0, scale: float = 0.01, *, extremes: bool = False
) -> torch.Tensor:
    """Return rows of blocks, all of whose bits are random but the scales': these are `scale` at most, or extreme ones."""
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (rows * inputs // kind.inputs, kind.row_block_bytes), dtype=np.uint8)
    for start in _HALVES.get(kind.name, (0, 2)):
        halves = (generator.uniform(-scale, scale, len(blocks))).astype(np.float16).view(np.uint16)
        if extremes:
            halves = np.where(generator.random(len(blocks)) < 0.7, generator.choice(EXTREME, len(blocks)), halves)
        blocks[:, start : start + 2] = halves.reshape(-1, 1).view(np.uint8)
    return torch.from_numpy(blocks.reshape(rows, kind.row_bytes(inputs)))


def write_quantised(path: Path, kind_of: Callable[[str], str], *, hidden: int = HIDDEN, is_tied: bool = False) -> Path:
    """Write a Llama whose matrices have the kinds that `kind_of` says by their names; `F32`: not quantised."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(8)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{number}" for number in range(VOCABULARY - 1)] + ["<e>"])
    writer.add_token_scores([-float(number) for number in range(VOCABULARY)])
    writer.add_token_types([gguf.TokenType.NORMAL] * (VOCABULARY - 1) + [gguf.TokenType.CONTROL])
    writer.add_eos_token_id(VOCABULARY - 1)
    shapes = {"token_embd.weight": (VOCABULARY, hidden)} | ({} if is_tied else {"output.weight": (VOCABULARY, hidden)})
    norms = ["output_norm.weight"]
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}.weight": (hidden, hidden) for name in ("attn_q", "attn_output")}
        shapes |= {f"blk.{layer}.{name}.weight": (hidden // 2, hidden) for name in ("attn_k", "attn_v")}
        shapes |= {f"blk.{layer}.{name}.weight": (INNER, hidden) for name in ("ffn_gate", "ffn_up")}
        shapes[f"blk.{layer}.ffn_down.weight"] = (hidden, INNER)
        norms += [f"blk.{layer}.{name}.weight" for name in ("attn_norm", "ffn_norm")]
    for seed, (name, (rows, inputs)) in enumerate(shapes.items()):
        _add(writer, name, kind_of(name), rows, inputs, seed)
    for name in norms:
        writer.add_tensor(name, np.ones(hidden, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, name: str, kind: str, rows: int, inputs: int, seed: int) -> None:
    numbers = np.random.default_rng(seed).normal(0, 0.1, (rows, inputs)).astype(np.float32)
    if kind == "F32":
        writer.add_tensor(name, numbers)
        return
    known = gguf.GGMLQuantizationType[kind]
    data: NDArray[np.uint8]
    if kind.endswith("_K"):  # the package has no quantisation to them
        scale = 2e-4 if kind == "Q6_K" else 1e-3
        data = random_blocks(BLOCK_KINDS[kind], rows, inputs, seed, scale).numpy()
    else:
        data = gguf.quantize(numbers, known)
    writer.add_tensor(name, data, raw_dtype=known)
