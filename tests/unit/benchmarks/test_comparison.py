"""The yardsticks beside us: rounds, sides, rows, workloads, and figures of an earlier run."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from spotwise.benchmarks.comparison import (
    Reading,
    readings_as_json,
    readings_from_json,
    rows_of,
)
from spotwise.benchmarks.interference import Interference
from spotwise.benchmarks.peer import read_peer
from spotwise.benchmarks.peer_measure import prompt_seed, those_close
from spotwise.benchmarks.rounds import in_order_of_round, row_of_rounds
from spotwise.benchmarks.sides import SPLIT, TUNED, YARDSTICKS, ComparedSides, Program, Side, parse_yardsticks
from spotwise.benchmarks.workloads import WORKLOADS, ClosedLoop, PeerWorkload, choose_workloads
from spotwise.cli.bench.report import ReportRow, Target
from spotwise.cli.errors import CommandError, OptionError

W1, W2, W3, W4, Q4, Q4_16, *_ = WORKLOADS
OURS, OURS_SPLIT = Side(Program.SPOTWISE, "float32"), Side(Program.SPOTWISE, "float32", SPLIT)
VLLM, VLLM_TUNED = Side(Program.VLLM, "float32"), Side(Program.VLLM, "float32", TUNED)
LLAMA = Side(Program.LLAMA, "float32")
EVERY = [workload.name for workload in WORKLOADS]
COMPARED = ComparedSides("float32", ("float32",), YARDSTICKS, split=True)


def reading(round_number: int, side: Side, workload: PeerWorkload, *values: float) -> Reading:
    """Return a reading with figures in the order of the workload's."""
    return Reading(round_number, side, workload.name, dict(zip([f.key for f in workload.figures], values, strict=True)))


def test_a_row_has_medians_and_the_spread_of_ratios_within_rounds() -> None:
    """Ours and the peer's median over the rounds; a ratio's spread pairs what ran in the same round."""
    readings = [
        *(reading(n, OURS, W1, tpot, 50.0) for n, tpot in ((1, 10.0), (2, 12.0), (3, 20.0))),
        *(reading(n, VLLM, W1, tpot, 100.0) for n, tpot in ((1, 20.0), (2, 12.0), (3, 10.0))),
    ]
    tpot, ttft = rows_of([W1], readings)
    assert tpot.name == "W1 TPOT p50, ms, beside vllm float32"
    assert (tpot.ours, tpot.reference, tpot.ratio, tpot.holds) == (12.0, 12.0, 1.0, False)
    assert (tpot.ours_spread, tpot.ratio_spread) == ((10.0, 20.0), (0.5, 2.0))
    assert (ttft.ratio, ttft.holds) == (0.5, True)


def test_the_better_yardstick_is_the_reference_and_the_other_is_shown() -> None:
    """Of each figure; with the median of its rounds; targets are those against it alone."""
    readings = [
        reading(1, OURS, W1, 10.0, 50.0),
        *(reading(n, VLLM, W1, tpot, 100.0) for n, tpot in ((1, 1.0), (2, 40.0), (3, 40.0))),
        reading(1, LLAMA, W1, 20.0, 200.0),
    ]
    assert [(row.name, row.reference, row.holds) for row in rows_of([W1], readings)] == [
        ("W1 TPOT p50, ms, beside llama.cpp float32", 20.0, True),
        ("W1 TTFT p50, ms, beside vllm float32", 100.0, True),
        ("W1 TTFT p50, ms, beside llama.cpp float32", 200.0, None),
        ("W1 TPOT p50, ms, beside vllm float32", 40.0, None),
    ]


def test_the_better_of_two_throughputs_is_the_larger() -> None:
    readings = [
        reading(1, OURS, W2, 130.0, 1.0, 1.0),
        reading(1, VLLM, W2, 100.0, 1.0, 1.0),
        reading(1, LLAMA, W2, 60.0, 1.0, 1.0),
    ]
    throughput = rows_of([W2], readings)[0]
    assert (throughput.reference, throughput.ratio, throughput.holds) == (100.0, 1.3, True)


def test_figures_that_are_a_trade_off_are_those_of_one_server() -> None:
    """The gaps of the tuned vLLM are not paired with the long prompts' times of the other."""
    readings = [
        reading(1, OURS, W4, 30.0, 1000.0, 20.0),
        reading(1, VLLM, W4, 1600.0, 1700.0, 18.0),
        reading(1, VLLM_TUNED, W4, 300.0, 1800.0, 18.0),
        reading(1, LLAMA, W4, 8000.0, 900.0, 10.0),
    ]
    rows = rows_of([W4], readings)
    assert [(row.reference, row.holds) for row in rows[:3]] == [(300.0, True), (1800.0, True), (18.0, None)]
    assert all("vllm float32 tuned" in row.name for row in rows[:3])
    assert [row.reference for row in rows[3:]] == [8000.0, 900.0, 10.0, 1600.0, 1700.0, 18.0]
    assert all(row.holds is row.ours_spread is row.ratio_spread is None for row in rows[3:])  # one round


def test_the_split_mesh_is_listed_below_without_targets() -> None:
    """The split mesh is one way to serve; targets apply to the recommended way."""
    readings = [
        reading(1, OURS_SPLIT, W3, 1100.0, 1.0, 1.0),
        reading(1, OURS, W3, 1500.0, 1.0, 1.0),
        reading(1, VLLM, W3, 1000.0, 1.0, 1.0),
    ]
    rows = rows_of([W3], readings)
    assert [(row.ratio, row.holds) for row in (rows[0], rows[3])] == [(1.5, True), (1.1, None)]
    assert [row.name.replace(" (split)", "") for row in rows[3:]] == [row.name for row in rows[:3]]
    assert all(" (split), beside vllm" in row.name for row in rows[3:])


def test_reused_figures_serve_more_rounds_than_they_have() -> None:
    """A round that the yardstick has not run is held against its median."""
    readings = [
        reading(1, VLLM, W3, 1000.0, 1.0, 1.0),
        *(reading(n, OURS, W3, 1000.0 * n, 1.0, 1.0) for n in (1, 2)),
    ]
    throughput = rows_of([W3], readings)[0]
    assert (throughput.ours, throughput.ratio_spread, throughput.holds) == (1500.0, (1.0, 2.0), True)


def test_without_a_yardstick_there_are_figures_and_no_verdict() -> None:
    throughput = rows_of([W2], [reading(1, OURS, W2, 244.0, 1.0, 1.0)])[0]
    assert throughput.name == "W2 output tokens/s"
    assert (throughput.ours, throughput.reference, throughput.holds) == (244.0, None, None)
    assert throughput.ratio_spread is None


def test_what_failed_on_our_side_has_no_row() -> None:
    assert rows_of([W2], [reading(1, VLLM, W2, 244.0, 1.0, 1.0)]) == []


def test_the_sides_of_a_workload() -> None:
    """vLLM reads no quantised files; it is tuned where that helps it, and measured in each of its dtypes."""
    assert COMPARED.sides_of(W1) == [OURS, OURS_SPLIT, VLLM, LLAMA]
    assert COMPARED.sides_of(W4) == [OURS, OURS_SPLIT, VLLM, VLLM_TUNED, LLAMA]
    assert COMPARED.sides_of(Q4) == [Side(Program.SPOTWISE, "q4_1"), Side(Program.LLAMA, "q4_1")]
    both = ComparedSides("bfloat16", ("bfloat16", "float32"), [Program.VLLM], split=False)
    assert list(map(str, both.sides_of(W1))) == ["spotwise bfloat16", "vllm bfloat16", "vllm float32"]
    further = next(each for each in WORKLOADS if each.further)
    assert COMPARED.sides_of(further) == [OURS, VLLM, LLAMA]
    assert COMPARED.sides([W1, W2, Q4, Q4_16]) == [*COMPARED.sides_of(W1), *COMPARED.sides_of(Q4)]


@pytest.mark.parametrize("side", [OURS, OURS_SPLIT, VLLM_TUNED, LLAMA])
def test_a_side_is_known_by_its_name(side: Side) -> None:
    assert Side.parse(str(side)) == side


def test_unknown_yardsticks_are_refused() -> None:
    assert parse_yardsticks("llama.cpp, VLLM") == (Program.VLLM, Program.LLAMA)
    for text in ("", "spotwise", "vllm,sglang"):
        with pytest.raises(OptionError, match=r"write some of vllm,llama\.cpp"):
            parse_yardsticks(text)


def test_a_dtype_that_is_close_to_the_better_is_measured_too() -> None:
    """The mesh's own always is, and first."""
    assert those_close({"bfloat16": 100.0, "float32": 79.0}, "bfloat16") == {"bfloat16": 100.0}
    assert list(those_close({"bfloat16": 100.0, "float32": 80.0}, "float32")) == ["float32", "bfloat16"]
    assert list(those_close({"bfloat16": 10.0, "float32": 80.0}, "bfloat16")) == ["bfloat16", "float32"]
    assert list(those_close({"bfloat16": 10.0, "float32": 80.0}, "float32")) == ["float32"]


def test_readings_survive_the_file() -> None:
    readings = [reading(2, VLLM_TUNED, W4, 1.5, 2.5, 3.5)]
    assert readings_from_json(readings_as_json(readings)) == readings


@pytest.mark.parametrize(
    "broken",
    [
        [{"round": 1}],
        *([{"round": 1, "side": side, "workload": "w1", "figures": {}}] for side in ("x", "vllm", "x float32")),
        ["w1"],
    ],
)
def test_what_is_no_reading_is_an_error(broken: list[object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        readings_from_json(broken)  # type: ignore[arg-type]


def test_rounds_alternate_their_order() -> None:
    assert [in_order_of_round(number, ["a", "b", "c"]) for number in (1, 2, 3)] == [
        ("a", "b", "c"),
        ("c", "b", "a"),
        ("a", "b", "c"),
    ]


def test_rounds_are_summed_up_by_their_medians() -> None:
    """Ratios are spread within a round, not between the medians; a single round has no spread."""
    target = Target(at_most=1.0)
    found = row_of_rounds("TPOT, ms", [2.0, 3.0, 10.0], [4.0, 2.0, 5.0], target)
    assert found == ReportRow("TPOT, ms", 3.0, 4.0, target, (2.0, 10.0), (0.5, 2.0))
    assert row_of_rounds("alone", [2.0], [4.0]) == ReportRow("alone", 2.0, 4.0)


def test_no_round_and_no_workload_shares_its_prompts() -> None:
    """A cache of prefixes must not answer from the warm-up, the round before or another workload; sides get the same."""
    every = itertools.product((0, 1, 2), range(1, 101), WORKLOADS, (0, 1))
    seeds = [prompt_seed(seed, number, workload, purpose) for seed, number, workload, purpose in every]
    assert len(set(seeds)) == len(seeds)
    assert max(seeds) < 2**32


def test_quick_workloads_keep_their_shape() -> None:
    for quick, whole in zip(choose_workloads(",".join(EVERY), quick=True), WORKLOADS, strict=True):
        assert (quick.name, quick.figures) == (whole.name, whole.figures)
        if isinstance(whole.load, ClosedLoop) and isinstance(quick.load, ClosedLoop):
            assert whole.load.streams <= quick.load.requests <= whole.load.requests
        elif isinstance(whole.load, Interference) and isinstance(quick.load, Interference):
            assert quick.load.every_s < quick.load.seconds < whole.load.seconds
        assert quick.shape != whole.shape


def test_a_quick_run_leaves_out_the_further_shapes() -> None:
    """A named one is run all the same; without llama.cpp quantised files have no yardstick."""
    further = ["w7", "w8", "w9", "w10"]
    assert [each.name for each in choose_workloads(None, quick=False)] == EVERY
    assert [each.name for each in choose_workloads(None, quick=True)] == [e for e in EVERY if e not in further]
    assert [each.name for each in choose_workloads("w9", quick=True)] == ["w9"]
    assert [each.name for each in choose_workloads("w6", quick=False)] == [e for e in EVERY if e.startswith("w6-")]
    assert not any(each.weights for each in choose_workloads(None, quick=False, quantised=False))
    with pytest.raises(OptionError, match=r"w6-q4_1, .* need llama\.cpp"):
        choose_workloads("w1,w6", quick=False, quantised=False)


@pytest.mark.parametrize("names", ["", "w5", "w1,w99", ","])
def test_unknown_workloads_are_refused(names: str) -> None:
    with pytest.raises(OptionError, match="w1,w2,w3,w4,w6,w7"):
        choose_workloads(names, quick=False)
    assert choose_workloads("w4, W1", quick=False) == (W1, W4)


def test_the_shape_names_all_that_is_the_load() -> None:
    shapes = {each.name: each.shape for each in WORKLOADS}
    assert len(set(shapes.values())) == len(WORKLOADS)
    assert shapes["w6-q8_0-16"] == "16 streams, 128→64, 64 requests, q8_0"
    assert shapes["w9"] == "8 streams, 1024 shared + 64→64, 32 requests"


def earlier(tmp_path: Path, **changed: Any) -> Path:
    """A report of an earlier run of W1 and W4."""
    readings = [
        Reading(1, OURS, "w1", {"median_tpot_ms": 1.0}),
        *(Reading(1, side, "w1", {"median_tpot_ms": 2.0}) for side in (VLLM, LLAMA)),
        *(Reading(1, side, "w4", {"itl_p99_ms": 3.0}) for side in (VLLM, VLLM_TUNED, LLAMA)),
    ]
    document = {
        "environment": {"measured_at": "2026-01-01T00:00:00+00:00", "workloads": {"w1": W1.shape, "w4": W4.shape}},
        "rows": [],
        "rounds": readings_as_json(readings),
    } | changed
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(document))
    return path


def test_only_the_yardsticks_figures_are_taken_over(tmp_path: Path) -> None:
    readings, source = read_peer(earlier(tmp_path), [W1], COMPARED)
    assert [(reading.side, reading.workload) for reading in readings] == [(VLLM, "w1"), (LLAMA, "w1")]
    assert source == "earlier.json, measured at 2026-01-01T00:00:00+00:00"
    assert len(read_peer(earlier(tmp_path), [W1, W4], COMPARED)[0]) == 5


def test_figures_of_another_load_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no figures of a yardstick for w1"):
        read_peer(earlier(tmp_path), choose_workloads("w1", quick=True), COMPARED)
    with pytest.raises(CommandError, match=r"no figures of llama\.cpp float32, vllm float32 for w2"):
        read_peer(earlier(tmp_path), choose_workloads("w1,w2", quick=False), COMPARED)
    untuned = readings_as_json([Reading(1, side, "w4", {"itl_p99_ms": 3.0}) for side in (VLLM, LLAMA)])
    with pytest.raises(CommandError, match="no figures of vllm float32 tuned for w4"):
        read_peer(earlier(tmp_path, rounds=untuned), [W4], COMPARED)


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no result of `spotwise bench peer"):
        read_peer(earlier(tmp_path, rounds=None), [W1], COMPARED)
    path = tmp_path / "other.json"
    for text in ("no json", "[]", "{}"):
        path.write_text(text)
        with pytest.raises(CommandError, match="no result of `spotwise bench peer"):
            read_peer(path, [W1], COMPARED)
    with pytest.raises(CommandError, match="No such file"):
        read_peer(tmp_path / "nowhere.json", [W1], COMPARED)
