"""Models with random weights, small enough for every test, and a way to run sequences through an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.kv.blocks import BlockPool
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SampledToken, SamplingParams
from spotwise.engine.engine import Engine
from spotwise.engine.model.loading import EngineConfig

VOCAB_SIZE = 211


def llama_config(**changes: Any) -> LlamaConfig:
    return LlamaConfig(
        **{
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 96,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
            "initializer_range": 0.2,  # large enough that the likeliest token varies and depends on the context
            **changes,
        }
    )


def save_model(config: Any, folder: Path, seed: int = 0) -> Path:
    """Write a model of this config with random weights; its tokenizer is an empty file."""
    torch.manual_seed(seed)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def load_engine(
    folder: Path, dtype: str = "float32", kv_cache_bytes: int = 4 << 20, block_size: int = 16, *, native: bool = True
) -> Engine:
    return Engine.load(EngineConfig(folder, dtype, "cpu", kv_cache_bytes, block_size, threads=1, native=native))


def record(
    choice_id: str,
    prompt: list[int],
    sampling: SamplingParams | None = None,
    outputs: tuple[int, ...] = (),
    max_new_tokens: int = 32,
    **stop: Any,
) -> RequestRecord:
    """A greedy request by default."""
    return RequestRecord(
        choice_id=choice_id,
        epoch=1,
        gateway_id="gateway",
        attempt_id=0,
        model="tiny",
        prompt_token_ids=tuple(prompt),
        output_token_ids=outputs,
        sampling=sampling or SamplingParams(temperature=0.0),
        stop=StopCriteria(max_new_tokens, **stop),
        arrival_unix_s=0.0,
    )


class DrivenEngine(Protocol):
    """What a `Driver` calls of an engine, or of a group of them."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""

    @property
    def block_size(self) -> int:
        """Tokens of a block."""

    def add_sequence(self, record: RequestRecord) -> None:
        """Add a sequence."""

    def run_iteration(self, batch: Batch) -> tuple[SampledToken, ...]:
        """Compute a batch."""


@dataclass
class Driver:
    """The least scheduler there is: every sequence it was given runs in every iteration until it has its tokens."""

    engine: DrivenEngine
    chunk_tokens: int = 1 << 30
    results: dict[str, list[SampledToken]] = field(default_factory=dict)
    computed: dict[str, int] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    largest_mix: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.engine.num_blocks, self.engine.block_size)

    def add(self, request: RequestRecord) -> None:
        self.engine.add_sequence(request)
        name = request.sequence_id
        tokens = len(request.prompt_token_ids) + len(request.output_token_ids)
        self.pool.allocate(name, len(request.prompt_token_ids) + request.stop.max_new_tokens)
        self.results[name] = []
        self.computed[name], self.known[name] = 0, tokens
        self.wanted[name] = request.stop.max_new_tokens - len(request.output_token_ids)

    def step(self) -> bool:
        rows = []
        for name, known in self.known.items():
            if len(self.results[name]) < self.wanted[name]:
                tokens = min(known - self.computed[name], self.chunk_tokens)
                rows.append(BatchRow(name, self.computed[name], tokens, self.pool.owned_by(name)))
        if not rows:
            return False
        decodes = sum(row.is_decode for row in rows)
        self.largest_mix = max(self.largest_mix, (min(decodes, len(rows) - decodes), len(rows)))
        for row in rows:
            self.computed[row.sequence_id] += row.num_tokens
        for token in self.engine.run_iteration(Batch(tuple(rows))):
            self.results[token.sequence_id].append(token)
            self.known[token.sequence_id] += 1
        return True

    def finish(self) -> dict[str, list[int]]:
        while self.step():
            pass
        return {name: [token.token_id for token in tokens] for name, tokens in self.results.items()}
