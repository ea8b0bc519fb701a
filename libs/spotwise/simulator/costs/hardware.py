"""Simulated machines and language models: numbers with their units."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.costs.cost_model import IterationCost

GIB = 2**30


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """Sizes of a language model for memory and links.

    Attributes:
        name: in profiles.
        layers, heads, kv_heads, head_size: sizes of the attention, possibly with grouped queries.
        value_bytes: bytes of one number in the KV cache.
    """

    name: str
    weight_bytes: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    value_bytes: int = 2

    @property
    def hidden_size(self) -> int:
        """Numbers in a token's queries, all heads of a layer."""
        return self.heads * self.head_size

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of one token's keys and values, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.value_bytes


@dataclass(frozen=True, slots=True)
class MachineType:
    """A machine that serves one model with all its GPUs.

    Attributes:
        cost: seconds of its iterations with the model.
        memory_bytes: memory of all its GPUs.
        link_bytes_per_s: bandwidth of its network, each way.
        link_latency_s: seconds of a transfer after the last byte; the longer one of both ends counts. `None`: the world's.
        host_memory_bytes: for swapped-out KV.
        host_bytes_per_s: between all its GPUs and the host, each way; a GPU's PCIe 4 x16 carries about 25 GB/s.
    """

    name: str
    cost: IterationCost
    memory_bytes: int
    link_bytes_per_s: float
    host_memory_bytes: int = 0
    host_bytes_per_s: float = 25e9
    link_latency_s: float | None = None

    def kv_tokens(self, model: LanguageModel, memory_share: float = 1.0) -> int:
        """Return the KV capacity in tokens of a share of the memory, beside the weights; raises ValueError if the weights alone
        do not fit."""
        tokens = int((self.memory_bytes * memory_share - model.weight_bytes) // model.kv_token_bytes)
        if tokens < 1:
            raise ValueError(f"{model.name} does not fit a {self.name}: its weights leave no memory for KV")
        return tokens


#: Weights of 329 and 135 GiB as in the paper's simulator.
BLOOM_176B = LanguageModel("bloom-176b", 329 * GIB, layers=70, heads=112, kv_heads=112, head_size=128)
#: Grouped queries: 8 heads of keys and values for 64 of queries.
LLAMA2_70B = LanguageModel("llama2-70b", 135 * GIB, layers=80, heads=64, kv_heads=8, head_size=128)

LANGUAGE_MODELS = {model.name: model for model in (BLOOM_176B, LLAMA2_70B)}
