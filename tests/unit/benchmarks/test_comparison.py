"""Rounds, sides and what comes of their readings."""

from __future__ import annotations

import pytest

from spotwise.benchmarks.comparison import (
    Reading,
    Side,
    readings_as_json,
    readings_from_json,
    rows_of,
    sides_of,
)
from spotwise.benchmarks.workloads import WORKLOADS, PeerWorkload, choose_workloads

W1, W2, W3, W4 = WORKLOADS


def reading(round_number: int, side: Side, workload: PeerWorkload, *values: float) -> Reading:
    """Return a reading with figures in the order of the workload's."""
    return Reading(round_number, side, workload.name, dict(zip([f.key for f in workload.figures], values, strict=True)))


def test_only_the_interference_needs_a_tuned_peer() -> None:
    assert [Side.TUNED_PEER in sides_of(workload) for workload in WORKLOADS] == [False, False, False, True]


def test_a_row_has_medians_and_the_spread_of_ratios_within_rounds() -> None:
    """Ours and the peer's median over the rounds; a ratio's spread pairs what ran in the same round."""
    readings = [
        *(reading(n, Side.OURS, W1, tpot, 50.0) for n, tpot in ((1, 10.0), (2, 12.0), (3, 20.0))),
        *(reading(n, Side.PEER, W1, tpot, 100.0) for n, tpot in ((1, 20.0), (2, 12.0), (3, 10.0))),
    ]
    tpot, ttft = rows_of([W1], readings)
    assert (tpot.name, tpot.ours, tpot.reference, tpot.ratio, tpot.holds) == ("W1 TPOT p50, ms", 12.0, 12.0, 1.0, True)
    assert (tpot.ours_spread, tpot.ratio_spread) == ((10.0, 20.0), (0.5, 2.0))
    assert (ttft.ratio, ttft.holds) == (0.5, True)


def test_the_tuned_peer_is_the_reference() -> None:
    """Ratios and targets are those against the tuned peer; the untuned row is below, without targets."""
    readings = [
        reading(1, Side.OURS, W4, 30.0, 2000.0, 20.0),
        reading(1, Side.PEER, W4, 1600.0, 1700.0, 18.0),
        reading(1, Side.TUNED_PEER, W4, 300.0, 1800.0, 18.0),
    ]
    rows = rows_of([W4], readings)
    assert [(row.reference, row.holds) for row in rows] == [
        (300.0, True),
        (1800.0, True),
        (18.0, None),
        (1600.0, None),
        (1700.0, None),
        (18.0, None),
    ]
    assert all("untuned" in row.name for row in rows[3:])
    assert all(row.ours_spread is row.ratio_spread is None for row in rows)  # one round


def test_the_split_mesh_is_listed_below_without_targets() -> None:
    """The split mesh is one way to serve; targets apply to the recommended way."""
    readings = [
        reading(1, Side.OURS, W3, 1500.0, 1.0, 1.0),
        reading(1, Side.OURS_SPLIT, W3, 1100.0, 1.0, 1.0),
        reading(1, Side.PEER, W3, 1000.0, 1.0, 1.0),
    ]
    rows = rows_of([W3], readings)
    assert [(row.ratio, row.holds) for row in (rows[0], rows[3])] == [(1.5, True), (1.1, None)]
    assert [row.name for row in rows[3:]] == [f"{row.name} (split)" for row in rows[:3]]


def test_reused_figures_serve_more_rounds_than_they_have() -> None:
    """A round that the peer has not run is held against its median."""
    readings = [
        reading(1, Side.PEER, W3, 1000.0, 1.0, 1.0),
        *(reading(n, Side.OURS, W3, 1000.0 * n, 1.0, 1.0) for n in (1, 2)),
    ]
    throughput = rows_of([W3], readings)[0]
    assert (throughput.ours, throughput.ratio_spread, throughput.holds) == (1500.0, (1.0, 2.0), True)


def test_without_a_peer_there_are_figures_and_no_verdict() -> None:
    throughput = rows_of([W2], [reading(1, Side.OURS, W2, 244.0, 1.0, 1.0)])[0]
    assert (throughput.ours, throughput.reference, throughput.holds, throughput.ratio_spread) == (
        244.0,
        None,
        None,
        None,
    )


def test_readings_survive_the_file() -> None:
    readings = [reading(2, Side.TUNED_PEER, W4, 1.5, 2.5, 3.5)]
    assert readings_from_json(readings_as_json(readings)) == readings


@pytest.mark.parametrize(
    "broken", [[{"round": 1}], [{"round": 1, "side": "x", "workload": "w1", "figures": {}}], ["w1"]]
)
def test_what_is_no_reading_is_an_error(broken: list[object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        readings_from_json(broken)  # type: ignore[arg-type]


def test_targets_are_those_that_were_set() -> None:
    targets = {workload.name: [str(figure.target or "") for figure in workload.figures] for workload in WORKLOADS}
    assert targets == {
        "w1": ["<= 1x", "<= 1x"],
        "w2": [">= 1.3x", "", ""],
        "w3": [">= 1.2x", "", ""],
        "w4": ["<= 0.2x", "<= 1.3x", ""],
    }
    assert choose_workloads("w4, W1", quick=False) == (W1, W4)
