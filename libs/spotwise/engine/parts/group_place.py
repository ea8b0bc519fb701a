"""A member's place in a group of P x M processes: which part of the model, and of its KV, it has."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.parallel.model_partition import ModelShare
from spotwise.core.requests.kv_part import KvPart
from spotwise.engine.kv.cache import PagedKvCache
from spotwise.engine.model.compatibility import ModelFacts
from spotwise.engine.model.errors import UnsupportedModelError
from spotwise.engine.model.kv_size import AutoKvSize, named_memory_errors
from spotwise.engine.model.loading import EngineConfig, resolve
from spotwise.engine.native.shard import Shard
from spotwise.engine.parts.sharding import dimensions
from spotwise.engine.parts.sketch import Sketch


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """A place in groups of `stages` x `shard.count` members.

    Attributes:
        shard: the member's shard of a stage; joins the exchange of each group.
        stages: P.
    """

    shard: Shard
    stages: int

    def share_of(self, sketch: Sketch) -> ModelShare:
        """Return the part of a model at this place.

        Raises:
            UnsupportedModelError: the model cannot be cut into such stages and shards.
        """
        parts = dimensions(sketch.model, sketch.facts)
        if (reason := parts.why_not(self.stages, self.shard.count)) is not None:
            raise UnsupportedModelError(f"the model cannot be cut into {self.stages} x {self.shard.count}: {reason}")
        return ModelShare(parts, self.shard.stage, self.stages, self.shard.index, self.shard.count)


def require_cpu(config: EngineConfig) -> None:
    """Raise `ValueError` where parts of a model cannot be computed on the configured device: gathers read the host's memory."""
    device, _ = resolve(config)
    if device.type != "cpu":
        raise ValueError(
            f"workers of several processes compute on CPUs only, and the device is {device}; set SPOTWISE_DEVICE=cpu, or "
            "serve the model by one process"
        )


def part_cache(config: EngineConfig, facts: ModelFacts, share: ModelShare, num_blocks: int | None) -> PagedKvCache:
    """Return the KV cache of a member, with `num_blocks` blocks or as many as its `kv_cache_bytes` hold.

    Where these are measured, a group that is formed anew has the blocks that its members measured before: the share of another
    moment is a little less or more, and is no reason to refuse. Memory that is not free is.

    Raises:
        ValueError: not one block fits, or not so many.
        ModelError: there is no memory for them.
    """
    bytes_per_block = share.block_elements(config.block_size) * facts.kv_dtype.itemsize
    kv_bytes = config.kv_cache_bytes
    if isinstance(kv_bytes, AutoKvSize):
        if num_blocks is None:
            raise ValueError("a member of a group says what it offers before its part is loaded")
        kv_bytes = kv_bytes.free_host_bytes()
    most = kv_bytes // bytes_per_block
    if most < max(1, num_blocks or 1):
        raise ValueError(
            f"{kv_bytes} bytes are there for its KV cache, and {num_blocks or 1} blocks of {bytes_per_block} bytes are needed: "
            "more memory has to be free, or SPOTWISE_KV_CACHE_BYTES (--kv-cache) larger on this machine"
        )
    device, _ = resolve(config)
    part = KvPart.of(share.layers, share.kv_heads)
    num_blocks = num_blocks or most
    with named_memory_errors(f"a KV cache of {num_blocks * bytes_per_block} bytes"):
        return PagedKvCache(facts.geometry, num_blocks, config.block_size, facts.kv_dtype, device, part=part)
