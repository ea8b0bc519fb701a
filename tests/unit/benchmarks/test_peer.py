"""`spotwise bench peer` short of its processes: seeds, workloads, figures of an earlier run."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from spotwise.benchmarks.comparison import Reading, Side, readings_as_json
from spotwise.benchmarks.interference import Interference
from spotwise.benchmarks.peer import prompt_seed, read_peer
from spotwise.benchmarks.workloads import WORKLOADS, ClosedLoop, choose_workloads
from spotwise.cli.errors import CommandError

W1, *_, W4 = WORKLOADS


def test_no_round_and_no_workload_shares_its_prompts() -> None:
    """A cache of prefixes must not answer from the warm-up, the round before or another workload; sides get the same."""
    every = itertools.product((0, 1, 2), range(1, 101), WORKLOADS, (0, 1))
    seeds = [prompt_seed(seed, number, workload, purpose) for seed, number, workload, purpose in every]
    assert len(set(seeds)) == len(seeds)
    assert max(seeds) < 2**32


def test_quick_workloads_keep_their_shape() -> None:
    for quick, whole in zip(choose_workloads("w1,w2,w3,w4", quick=True), WORKLOADS, strict=True):
        assert (quick.name, quick.figures) == (whole.name, whole.figures)
        if isinstance(whole.load, ClosedLoop) and isinstance(quick.load, ClosedLoop):
            assert whole.load.streams <= quick.load.requests <= whole.load.requests
        elif isinstance(whole.load, Interference) and isinstance(quick.load, Interference):
            assert quick.load.every_s < quick.load.seconds < whole.load.seconds
        assert quick.shape != whole.shape


@pytest.mark.parametrize("names", ["", "w5", "w1,w9", ","])
def test_unknown_workloads_are_refused(names: str) -> None:
    with pytest.raises(CommandError, match="w1,w2,w3,w4"):
        choose_workloads(names, quick=False)


def earlier(tmp_path: Path, **changed: Any) -> Path:
    """A report of an earlier run of W1 and W4."""
    readings = [
        Reading(1, Side.OURS, "w1", {"median_tpot_ms": 1.0}),
        Reading(1, Side.PEER, "w1", {"median_tpot_ms": 2.0}),
        Reading(1, Side.PEER, "w4", {"itl_p99_ms": 3.0}),
        Reading(1, Side.TUNED_PEER, "w4", {"itl_p99_ms": 4.0}),
    ]
    document = {
        "environment": {"measured_at": "2026-01-01T00:00:00+00:00", "workloads": {"w1": W1.shape, "w4": W4.shape}},
        "rows": [],
        "rounds": readings_as_json(readings),
    } | changed
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(document))
    return path


def test_only_the_peers_figures_are_taken_over(tmp_path: Path) -> None:
    """Only figures of the requested workloads are copied, with their origin, into the new report."""
    readings, source = read_peer(earlier(tmp_path), [W1])
    assert [(reading.side, reading.workload) for reading in readings] == [(Side.PEER, "w1")]
    assert source == "earlier.json, measured at 2026-01-01T00:00:00+00:00"
    assert len(read_peer(earlier(tmp_path), [W1, W4])[0]) == 3


def test_figures_of_another_load_are_refused(tmp_path: Path) -> None:
    """A quick run's figures are not those of a whole run, and a missing side is an error."""
    with pytest.raises(CommandError, match="no figures of the peer for w1"):
        read_peer(earlier(tmp_path), choose_workloads("w1", quick=True))
    with pytest.raises(CommandError, match="no figures of the peer for w2"):
        read_peer(earlier(tmp_path), choose_workloads("w1,w2", quick=False))
    untuned = readings_as_json([Reading(1, Side.PEER, "w4", {"itl_p99_ms": 3.0})])
    with pytest.raises(CommandError, match="no figures of the peer for w4"):
        read_peer(earlier(tmp_path, rounds=untuned), [W4])


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    """Another benchmark's file, one that is no JSON, one that is not there."""
    with pytest.raises(CommandError, match="no result of `spotwise bench peer"):
        read_peer(earlier(tmp_path, rounds=None), [W1])
    path = tmp_path / "other.json"
    for text in ("no json", "[]", "{}"):
        path.write_text(text)
        with pytest.raises(CommandError, match="no result of `spotwise bench peer"):
            read_peer(path, [W1])
    with pytest.raises(CommandError, match="No such file"):
        read_peer(tmp_path / "nowhere.json", [W1])
