"""What a position holds, and what two positions both hold."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.migration.deployment import RunningRequest
from spotwise.core.migration.mapping.parts import Part, PartKind
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.core.parallel.model_partition import ModelShare
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.shares import PartBytes, Share, overlap, share_of
from tests.unit.core.migration.held_parts import HeldShare, kv_of, weights_of
from tests.unit.core.parallel.builders import engine_shape

MODEL = ModelShape(
    "small", layers=5, hidden_size=8, layer_bytes=120, embedding_bytes=70, head_bytes=50, kv_layer_token_bytes=24
)


def parts(held: list[HeldShare]) -> list[str]:
    return [f"{entry.part.kind}{'' if entry.part.layer is None else entry.part.layer}" for entry in held]


class TestListed:
    """Part by part."""

    def test_the_embedding_is_on_the_first_stage_and_the_head_on_the_last_one_with_layers(self) -> None:
        config = ParallelConfig(1, 4, 1)
        held = [parts(weights_of(Position(0, stage, 0), config, MODEL)) for stage in range(4)]
        assert held == [["embedding", "layer0", "layer1"], ["layer2", "layer3"], ["layer4", "head"], []]

    def test_a_shard_holds_its_share_of_each(self) -> None:
        """The middle third of the parts of a stage that has all of them."""
        held = weights_of(Position(0, 0, 1), ParallelConfig(1, 1, 3), MODEL)
        assert {entry.share for entry in held} == {Share(Fraction(1, 3), Fraction(2, 3))}
        assert [entry.bytes for entry in held] == [46 - 23, *[40] * 5, 33 - 16]

    def test_kv_is_held_by_layer_and_token(self) -> None:
        """Half of 24 bytes for each of 7 tokens, in each layer of the stage."""
        held = kv_of(Position(3, 1, 0), ParallelConfig(4, 3, 2), MODEL, RunningRequest("r", tokens=7))
        assert [(entry.part, entry.bytes) for entry in held] == [
            (Part(PartKind.KV, 2, "r"), 84),
            (Part(PartKind.KV, 3, "r"), 84),
        ]

    @pytest.mark.parametrize("tensor", [1, 2, 3, 7])
    @pytest.mark.parametrize("stages", [1, 2, 4, 6])
    def test_a_pipeline_holds_the_model_once(self, stages: int, tensor: int) -> None:
        """The weights of a pipeline's positions sum to the model's, whether or not the shares are even."""
        config = ParallelConfig(1, stages, tensor)
        held = [entry.bytes for position in config.positions() for entry in weights_of(position, config, MODEL)]
        assert sum(held) == MODEL.weight_bytes


class TestShares:
    """Fractions of a part."""

    def test_shares_that_only_meet_have_nothing_in_common(self) -> None:
        """The end is not part of a share."""
        assert overlap(share_of(0, 2), share_of(1, 2)) is None
        assert PartBytes(100).of(None) == 0

    def test_shares_of_different_degrees_overlap_in_part(self) -> None:
        """The middle third and the first half have a sixth in common."""
        assert overlap(share_of(1, 3), share_of(0, 2)) == Share(Fraction(1, 3), Fraction(1, 2))

    @settings(max_examples=60)
    @given(
        st.integers(0, 10**6),
        st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 100)), max_size=3),
        st.integers(1, 9),
        st.integers(1, 9),
    )
    def test_overlaps_add_up_to_the_share_to_the_byte(
        self, rest: int, matrices: list[tuple[int, int]], tensor: int, other: int
    ) -> None:
        """However it is rounded, and where matrices are cut at panels."""
        part = PartBytes(rest + sum(columns * size for columns, size in matrices), tuple(matrices))
        for shard in range(tensor):
            share = share_of(shard, tensor)
            assert sum(part.of(overlap(share, share_of(into, other))) for into in range(other)) == part.of(share)


class TestCutByTheEngine:
    """Positions have what the engine's have."""

    @pytest.mark.parametrize("tensor", [1, 2, 3, 4])
    @pytest.mark.parametrize("stages", [1, 2, 3])
    def test_positions_have_the_layers_and_panels_of_the_engines_shares(self, stages: int, tensor: int) -> None:
        """Layers, whole panels of each matrix, heads, logits; and every shard of the first stage the embedding."""
        model = engine_shape(layers=9, kv_heads=12)
        dimensions, config = model.partition, ParallelConfig(1, stages, tensor)
        assert dimensions is not None
        for position in config.positions():
            share = ModelShare(dimensions, position.stage, stages, position.shard, tensor)
            held = weights_of(position, config, model)
            layers = [entry for entry in held if entry.part.kind is PartKind.LAYER]
            assert [entry.part.layer for entry in layers] == list(share.layers)
            columns = sum(len(share.columns(each.columns)) * each.inputs for each in dimensions.matrices)
            assert {entry.bytes for entry in layers} == {2 * columns}
            by_kind = {entry.part.kind: entry.bytes for entry in held}
            assert by_kind.get(PartKind.EMBEDDING) == (model.embedding_bytes if share.is_first else None)
            vocab = len(share.columns(dimensions.vocab_size))
            assert by_kind.get(PartKind.HEAD) == (2 * vocab * dimensions.hidden_size if share.is_last else None)
            (kv, *_) = kv_of(position, config, model, RunningRequest("r", tokens=7))
            assert kv.bytes == 7 * len(share.kv_heads) * (dimensions.key_dim + dimensions.value_dim) * 2

    def test_a_pipeline_has_the_embedding_once_for_each_shard(self) -> None:
        model, config = engine_shape(layers=9, kv_heads=12), ParallelConfig(1, 3, 4)
        held = sum(entry.bytes for position in config.positions() for entry in weights_of(position, config, model))
        assert held == model.group_bytes(4) == model.weight_bytes + 3 * model.embedding_bytes
