"""What fits a device."""

from __future__ import annotations

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.memory import LeastDevices, RealMemory
from tests.unit.core.parallel.builders import MODEL, engine_shape, machine

MEMORY = RealMemory(
    MODEL, context_tokens=1000, buffer_bytes=7, prompt_tokens=10, whole_activations=1.0, sharded_activations=2.0
)
ACTIVATIONS = 10 * 100 * 2


def test_one_stage_has_both_ends() -> None:
    """Ten layers with the KV of two sequences, embedding and head, activations, and the buffer."""
    kv_bytes = 2 * 1000 * 400 * 10
    assert MEMORY.device_bytes(ParallelConfig(1, 1, 1, 2)) == 12_500_000 + kv_bytes + 3 * ACTIVATIONS + 7


def test_shards_share_all_but_what_each_needs() -> None:
    """Weights, KV and the sharded activations are divided; the rest is not."""
    kv_bytes = 1000 * 400 * 10
    assert MEMORY.device_bytes(ParallelConfig(9, 1, 4)) == (12_500_000 + kv_bytes) / 4 + 1.5 * ACTIVATIONS + 7


def test_the_fuller_end_decides() -> None:
    """Of two even stages the last, with the head, needs most; of three, the first, with four layers of ten to the
    last's two.
    """
    assert MEMORY.device_bytes(ParallelConfig(1, 2, 1)) == 5 * 1_400_000 + 2_000_000 + 3 * ACTIVATIONS + 7
    assert MEMORY.device_bytes(ParallelConfig(1, 3, 1)) == 4 * 1_400_000 + 500_000 + 3 * ACTIVATIONS + 7


def test_stages_that_padding_leaves_empty_hold_nothing() -> None:
    """Eight stages of two layers: the head is with the fifth."""
    assert MEMORY.device_bytes(ParallelConfig(1, 8, 1)) == 2 * 1_400_000 + 2_000_000 + 3 * ACTIVATIONS + 7


def test_only_a_share_of_memory_is_usable() -> None:
    """A configuration fits if it needs at most nine tenths of the device's memory, to the byte."""
    needed = MEMORY.device_bytes(ParallelConfig(1, 1, 1))
    fits = -(-int(needed) * 10 // 9)
    assert MEMORY.allows(ParallelConfig(1, 1, 1), machine(memory_bytes=fits + 1))
    assert not MEMORY.allows(ParallelConfig(1, 1, 1), machine(memory_bytes=fits - 1))


def test_what_the_engine_cannot_cut_fits_nothing() -> None:
    """Five shards of twelve KV heads, however large the device."""
    memory = RealMemory(engine_shape(), context_tokens=10)
    assert memory.allows(ParallelConfig(1, 1, 3), machine())
    assert not memory.allows(ParallelConfig(1, 1, 5), machine())


def test_every_shard_of_the_engine_has_the_embedding_and_the_largest_decides() -> None:
    """Five panels of 160 columns in three shards are one, two and two; the head costs some layers."""
    model = engine_shape(inner=160)
    memory = RealMemory(model, 100, prompt_tokens=1, whole_activations=0.0, sharded_activations=0.0)
    front = len(model.stage_layers(0, 2))
    columns = (24 + 12 + 12) * 32 // 3 + 3 * 64
    assert memory.device_bytes(ParallelConfig(1, 2, 3)) == max(
        front * (2 * columns + 100 * 4 * 4 * 32) + 5000,
        (10 - front) * (2 * columns + 100 * 4 * 4 * 32) + model.head.most(3),
    )


def test_pipelines_for_prompts_need_as_much() -> None:
    """A prompt pipeline holds the KV of its batch until the hand-off."""
    assert MEMORY.device_bytes(ParallelConfig(2, 2, 2, 4, 1)) == MEMORY.device_bytes(ParallelConfig(1, 2, 2, 4))


def test_the_published_rule_counts_devices_of_a_pipeline() -> None:
    """P x M, whatever D may be."""
    limit = LeastDevices(12)
    assert limit.allows(ParallelConfig(1, 3, 4), machine(memory_bytes=1))
    assert not limit.allows(ParallelConfig(5, 2, 4), machine())
