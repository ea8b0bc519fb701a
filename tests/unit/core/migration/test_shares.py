"""What a position holds, and what two positions both hold."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.migration.deployment import RunningRequest
from spotwise.core.migration.mapping.shares import Part, PartKind, Share, overlap, share_bytes, share_of
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.core.parallel.model_shape import ModelShape
from tests.unit.core.migration.held_parts import HeldShare, kv_of, kv_overlap_bytes, weight_overlap_bytes, weights_of

MODEL = ModelShape(
    "small", layers=5, hidden_size=8, layer_bytes=120, embedding_bytes=70, head_bytes=50, kv_layer_token_bytes=24
)


def parts(held: list[HeldShare]) -> list[str]:
    return [f"{entry.part.kind}{'' if entry.part.layer is None else entry.part.layer}" for entry in held]


class TestListed:
    """Part by part."""

    def test_the_embedding_is_on_the_first_stage_and_the_head_on_the_last_one_with_layers(self) -> None:
        """5 layers over 4 stages are 2, 2, 1 and none."""
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
        assert share_bytes(100, None) == 0

    def test_shares_of_different_degrees_overlap_in_part(self) -> None:
        """The middle third and the first half have a sixth in common."""
        assert overlap(share_of(1, 3), share_of(0, 2)) == Share(Fraction(1, 3), Fraction(1, 2))

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 9))
    def test_overlaps_add_up_to_the_share_to_the_byte(self, whole_bytes: int, tensor: int, other: int) -> None:
        """Overlaps add up to the share to the byte, however it is rounded."""
        for shard in range(tensor):
            share = share_of(shard, tensor)
            common = [share_bytes(whole_bytes, overlap(share, share_of(into, other))) for into in range(other)]
            assert sum(common) == share_bytes(whole_bytes, share)


@st.composite
def two_positions(draw: st.DrawFn) -> tuple[Position, ParallelConfig, Position, ParallelConfig]:
    drawn: list[tuple[Position, ParallelConfig]] = []
    for _ in range(2):
        config = ParallelConfig(1, draw(st.integers(1, 6)), draw(st.integers(1, 8)))
        drawn.append((draw(st.sampled_from(list(config.positions()))), config))
    return (*drawn[0], *drawn[1])


class TestClosedForms:
    """Sums without lists."""

    @settings(max_examples=60, deadline=None)
    @given(two_positions(), st.integers(1, 50))
    def test_they_are_the_sums_over_the_parts_that_both_hold(
        self, two: tuple[Position, ParallelConfig, Position, ParallelConfig], tokens: int
    ) -> None:
        """The shared bytes are the sum over common parts of weights and KV, with any degrees."""
        one, one_config, other, other_config = two
        request = RunningRequest("r", tokens)

        def common(ours: list[HeldShare], theirs: list[HeldShare], times: int, whole: dict[PartKind, int]) -> int:
            shares = {entry.part: entry.share for entry in theirs}
            return sum(
                times * share_bytes(whole[entry.part.kind], overlap(entry.share, shares[entry.part]))
                for entry in ours
                if entry.part in shares
            )

        weights = common(
            weights_of(one, one_config, MODEL),
            weights_of(other, other_config, MODEL),
            1,
            {PartKind.EMBEDDING: 70, PartKind.LAYER: 120, PartKind.HEAD: 50},
        )
        kv = common(
            kv_of(one, one_config, MODEL, request),
            kv_of(other, other_config, MODEL, request),
            tokens,
            {PartKind.KV: 24},
        )
        assert weight_overlap_bytes(one, one_config, other, other_config, MODEL) == weights
        assert kv_overlap_bytes(one, one_config, other, other_config, MODEL, tokens) == kv

    def test_a_position_has_all_of_itself_in_common(self) -> None:
        """The overlap with itself is what it holds."""
        config = ParallelConfig(2, 3, 2)
        for position in config.positions():
            held = sum(entry.bytes for entry in weights_of(position, config, MODEL))
            assert weight_overlap_bytes(position, config, position, config, MODEL) == held
