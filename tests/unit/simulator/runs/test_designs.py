"""The paper's clusters."""

from __future__ import annotations

import pytest

from spotwise.core.messages.members import Pool
from spotwise.simulator.runs.clusters import (
    BASELINE_A100,
    BASELINE_H100,
    DESIGNS,
    PAPER_SPLITS,
    SPLITWISE_AA,
    SPLITWISE_HA,
    SPLITWISE_HHCAP,
    Design,
    Split,
)


class TestDesigns:
    """The machines of a design."""

    def test_a_split_cluster_has_both_pools(self) -> None:
        cluster = SPLITWISE_HA.cluster(Split(2, 1))
        assert [(group.kind.name, group.count, group.pool) for group in cluster.groups] == [
            ("dgx-h100", 2, Pool.PROMPT),
            ("dgx-a100", 1, Pool.TOKEN),
        ]
        assert (cluster.label, cluster.split, cluster.group_names) == (
            "Splitwise-HA (2, 1)",
            Split(2, 1),
            ["prompt", "token"],
        )

    def test_a_baseline_is_all_mixed(self) -> None:
        (group,) = BASELINE_A100.cluster(Split(3)).groups
        assert (group.count, group.pool) == (3, Pool.MIXED)

    @pytest.mark.parametrize(("design", "split"), [(BASELINE_A100, Split(1, 1)), (SPLITWISE_AA, Split(2))])
    def test_a_split_that_is_not_the_designs_is_refused(self, design: Design, split: Split) -> None:
        with pytest.raises(ValueError, match="cannot be split"):
            design.cluster(split)

    def test_every_split_of_the_paper_is_one_of_its_design(self) -> None:
        for splits in PAPER_SPLITS.values():
            for name, split in splits.items():
                assert DESIGNS[name].cluster(split).split == split

    def test_iso_power_clusters_draw_about_the_same(self) -> None:
        """Each published split draws within 3% of the power of 40 H100 machines, the paper's budget."""
        budget = BASELINE_H100.power(Split(40))
        for workload in ("conv", "code"):
            for name, split in PAPER_SPLITS["iso-power", workload].items():
                assert DESIGNS[name].power(split) == pytest.approx(budget, rel=0.03)

    def test_iso_cost_clusters_cost_about_the_same(self) -> None:
        """Each published split costs within 3% of 40 H100 machines, the paper's budget."""
        budget = BASELINE_H100.price_per_hour(Split(40))
        for name, split in PAPER_SPLITS["iso-cost", "conv"].items():
            assert DESIGNS[name].price_per_hour(split) == pytest.approx(budget, rel=0.03)

    def test_a_capped_machine_costs_as_much_and_draws_less(self) -> None:
        assert SPLITWISE_HHCAP.price_per_hour(Split(1, 1)) == BASELINE_H100.price_per_hour(Split(2))
        assert SPLITWISE_HHCAP.power(Split(1, 1)) == pytest.approx((44 + 30.8) / 24.8)
