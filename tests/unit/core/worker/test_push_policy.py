"""Tests of the push policy: serial or layer-wise transfer of a prompt's KV."""

from __future__ import annotations

import pytest

from spotwise.core.costs.cost_model import LinkCost
from spotwise.core.messages.hand_offs import PushMode
from spotwise.core.worker.kv.push_policy import REFRESH_EVERY, ConfiguredPushMode, PushCosts, PushPolicy

SERIAL, LAYERWISE = PushMode.SERIAL, PushMode.LAYERWISE
#: After its prefill a prompt's KV takes 1 ms and 1 s for each GB; during it 5 ms, whatever the size.
COSTS = PushCosts(LinkCost(0.001, 1e9), LinkCost(0.005, 1e15))


def policy(told: ConfiguredPushMode = ConfiguredPushMode.AUTO, costs: PushCosts | None = COSTS) -> PushPolicy:
    """One that knows the pair `t`, and that a token has 10,000 bytes."""
    made = PushPolicy(told)
    made.delivered(100, 1_000_000, 0.01)
    if costs is not None:
        made.measured("t", costs)
    return made


def test_small_prompts_go_afterwards_and_large_ones_meanwhile() -> None:
    """4 MB is where the lines cross: 400 tokens."""
    made = policy()
    assert [made.choose("t", tokens) for tokens in (16, 390, 410, 4096)] == [SERIAL, SERIAL, LAYERWISE, LAYERWISE]


def test_notices_make_the_layer_wise_way_dearer() -> None:
    """The engine's time for notices of written layers counts as a cost of the layer-wise push."""
    costs = PushCosts(COSTS.serial, COSTS.layerwise, notices_s=0.002)
    assert [costs.cheaper(size) for size in (5_900_000, 6_100_000)] == [SERIAL, LAYERWISE]


def test_a_new_pair_tries_both_ways() -> None:
    """A new pair tries the serial push first, then the other, whatever they cost with other pairs."""
    made = policy(costs=None)
    assert made.choose("t", 4096) is SERIAL
    made.measured("t", PushCosts(serial=COSTS.serial))
    assert made.choose("t", 16) is LAYERWISE
    made.measured("t", COSTS)
    assert (made.choose("t", 16), made.choose("other", 4096)) == (SERIAL, SERIAL)


@pytest.mark.parametrize(("tokens", "cheaper", "dearer"), [(16, SERIAL, LAYERWISE), (4096, LAYERWISE, SERIAL)])
def test_now_and_then_the_other_way_is_measured_again(tokens: int, cheaper: PushMode, dearer: PushMode) -> None:
    """Once in so many pushes of a pair."""
    made = policy()
    chosen = [made.choose("t", tokens) for _ in range(2 * REFRESH_EVERY)]
    assert chosen == ([cheaper] * (REFRESH_EVERY - 1) + [dearer]) * 2


@pytest.mark.parametrize(
    ("told", "mode"), [(ConfiguredPushMode.SERIAL, SERIAL), (ConfiguredPushMode.LAYERWISE, LAYERWISE)]
)
def test_a_mode_that_was_forced_is_kept(told: ConfiguredPushMode, mode: PushMode) -> None:
    """However many pushes there are, and whatever was measured."""
    made = policy(told)
    assert {made.choose("t", tokens) for tokens in (16, 4096) for _ in range(REFRESH_EVERY)} == {mode}


def test_what_a_prompt_token_costs_follows_the_hand_offs() -> None:
    """It is unknown before the first hand-off; then all seconds over all tokens, known up to the usual length."""
    made = PushPolicy(ConfiguredPushMode.SERIAL)
    assert made.rate.token_s is None
    made.delivered(100, 1, 1.0)
    assert made.rate.token_s == pytest.approx(0.01)
    made.delivered(900, 1, 1.0)
    assert made.rate.token_s == pytest.approx(0.002, rel=0.1)
    assert 800 < (made.rate.tokens or 0) < 900
