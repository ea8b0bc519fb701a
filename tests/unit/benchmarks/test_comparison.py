"""The peer beside us: rounds, sides, rows, its client, and figures of an earlier run."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from spotwise.benchmarks.comparison import (
    Reading,
    Side,
    readings_as_json,
    readings_from_json,
    rows_of,
)
from spotwise.benchmarks.interference import Interference
from spotwise.benchmarks.peer import prompt_seed, read_peer
from spotwise.benchmarks.rounds import in_order_of_round, row_of_rounds
from spotwise.benchmarks.vllm_client import client_command, find_vllm, read_result, vllm_version
from spotwise.benchmarks.workloads import WORKLOADS, ClosedLoop, PeerWorkload, choose_workloads
from spotwise.cli.bench.report import ReportRow, Target
from spotwise.cli.bench.servers import ServerEndpoint
from spotwise.cli.errors import CommandError

W1, W2, W3, W4 = WORKLOADS


def reading(round_number: int, side: Side, workload: PeerWorkload, *values: float) -> Reading:
    """Return a reading with figures in the order of the workload's."""
    return Reading(round_number, side, workload.name, dict(zip([f.key for f in workload.figures], values, strict=True)))


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


LOAD = ClosedLoop(streams=4, input_tokens=1024, output_tokens=16, requests=8)


def result(**changed: Any) -> dict[str, Any]:
    """A result file as vLLM 0.32 writes it, shortened."""
    return {
        "backend": "openai",
        "num_prompts": 8,
        "duration": 5.1,
        "completed": 8,
        "failed": 0,
        "total_input_tokens": 8192,
        "total_output_tokens": 128,
        "request_throughput": 1.6,
        "output_throughput": 25.0,
        "total_token_throughput": 1631.0,
        "errors": [""] * 8,
        "mean_ttft_ms": 1500.0,
        "median_ttft_ms": 1400.0,
        "p99_ttft_ms": 2000.0,
        "median_tpot_ms": 44.0,
        "p99_tpot_ms": 60.0,
        "median_itl_ms": 40.0,
        "p99_itl_ms": 90.0,
    } | changed


def test_the_figures_are_the_clients_own() -> None:
    figures = read_result(result(), LOAD)
    assert figures["total_token_throughput"] == 1631.0
    assert figures["median_ttft_ms"] == 1400.0
    assert figures["median_tpot_ms"] == 44.0
    assert figures["output_throughput"] == 25.0
    assert all(isinstance(value, float) for value in figures.values())
    assert "errors" not in figures


def test_a_failed_request_is_no_result() -> None:
    """However good the figures of the others; the last line of a traceback is its reason."""
    errors = ["Traceback:\n  somewhere\nServiceUnavailable: full\n", *[""] * 7]
    with pytest.raises(CommandError, match="1 of 8 requests failed: ServiceUnavailable: full"):
        read_result(result(completed=7, failed=1, errors=errors), LOAD)


def test_a_short_answer_is_no_result() -> None:
    """A side that writes fewer tokens would look faster."""
    with pytest.raises(CommandError, match="127 tokens came back where 128"):
        read_result(result(total_output_tokens=127), LOAD)


def test_another_releases_file_is_refused() -> None:
    short = result()
    del short["median_tpot_ms"]
    with pytest.raises(CommandError, match="wrote no median_tpot_ms"):
        read_result(short, LOAD)


def test_the_command_line_is_the_workload() -> None:
    """Both sides get the same one but for where it leads."""
    command = client_command(
        Path("/p/vllm"), ServerEndpoint("http://127.0.0.1:1", "m"), Path("/models/m"), LOAD, 7, Path("/r")
    )
    options = dict(itertools.pairwise(command))
    assert command[:3] == ["/p/vllm", "bench", "serve"]
    assert (options["--base-url"], options["--model"], options["--tokenizer"]) == (
        "http://127.0.0.1:1",
        "m",
        "/models/m",
    )
    assert (options["--random-input-len"], options["--random-output-len"]) == ("1024", "16")
    assert (options["--num-prompts"], options["--max-concurrency"], options["--seed"]) == ("8", "4", "7")
    assert "--ignore-eos" in command
    assert "--save-detailed" in command, "else its file lacks the reasons of failed requests"


def test_an_absent_peer_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    plain = tmp_path / "vllm"
    plain.touch()
    for path in (tmp_path / "nowhere", plain):
        with pytest.raises(CommandError, match=r"scripts/peer\.sh.*--vllm PATH or SPOTWISE_PEER_VLLM"):
            find_vllm(path)


def test_a_peer_that_is_there_is_found_with_its_version(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.touch(mode=0o755)
    assert os.access(program, os.X_OK)
    assert find_vllm(program) == program
    assert vllm_version(program) == "unknown"
    (tmp_path / "lib" / "python3.11" / "site-packages" / "vllm-0.32.0+cpu.dist-info").mkdir(parents=True)
    assert vllm_version(program) == "0.32.0+cpu"


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
    assert choose_workloads("w4, W1", quick=False) == (W1, W4)


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
    readings, source = read_peer(earlier(tmp_path), [W1])
    assert [(reading.side, reading.workload) for reading in readings] == [(Side.PEER, "w1")]
    assert source == "earlier.json, measured at 2026-01-01T00:00:00+00:00"
    assert len(read_peer(earlier(tmp_path), [W1, W4])[0]) == 3


def test_figures_of_another_load_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no figures of the peer for w1"):
        read_peer(earlier(tmp_path), choose_workloads("w1", quick=True))
    with pytest.raises(CommandError, match="no figures of the peer for w2"):
        read_peer(earlier(tmp_path), choose_workloads("w1,w2", quick=False))
    untuned = readings_as_json([Reading(1, Side.PEER, "w4", {"itl_p99_ms": 3.0})])
    with pytest.raises(CommandError, match="no figures of the peer for w4"):
        read_peer(earlier(tmp_path, rounds=untuned), [W4])


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no result of `spotwise bench peer"):
        read_peer(earlier(tmp_path, rounds=None), [W1])
    path = tmp_path / "other.json"
    for text in ("no json", "[]", "{}"):
        path.write_text(text)
        with pytest.raises(CommandError, match="no result of `spotwise bench peer"):
            read_peer(path, [W1])
    with pytest.raises(CommandError, match="No such file"):
        read_peer(tmp_path / "nowhere.json", [W1])
