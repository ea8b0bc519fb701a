"""vLLM's client: its command line, its result, and what it says of a failed request."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from spotwise.benchmarks.workloads import ClosedLoop
from spotwise.benchmarks.yardsticks import vllm_reasons
from spotwise.benchmarks.yardsticks.vllm_client import client_command, find_vllm, read_result, vllm_version
from spotwise.cli.bench.servers import ServerEndpoint
from spotwise.cli.errors import CommandError

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
    """However good the figures of the others; the last line of a traceback is its reason, and alike ones are counted."""
    errors = ["Traceback:\n  somewhere\nServiceUnavailable: full\n", "ServiceUnavailable: full", "cut", *[""] * 5]
    with pytest.raises(CommandError, match=r"^3 of 8 requests failed: 2 x ServiceUnavailable: full; 1 x cut$"):
        read_result(result(completed=5, failed=3, errors=errors), LOAD)
    with pytest.raises(CommandError, match=r"1 of 8 requests failed: .*look at the log"):
        read_result(result(completed=7, failed=1), LOAD)


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
    assert command[:5] == ["/p/python", "-P", vllm_reasons.__file__, "bench", "serve"]
    assert (options["--base-url"], options["--model"], options["--tokenizer"]) == (
        "http://127.0.0.1:1",
        "m",
        "/models/m",
    )
    assert (options["--random-input-len"], options["--random-output-len"]) == ("1024", "16")
    assert options["--random-prefix-len"] == "0"
    assert (options["--num-prompts"], options["--max-concurrency"], options["--seed"]) == ("8", "4", "7")
    assert "--ignore-eos" in command
    assert "--save-detailed" in command, "else its file lacks the reasons of failed requests"


def test_an_absent_peer_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    plain, alone = tmp_path / "vllm", tmp_path / "alone" / "vllm"
    plain.touch()
    plain.with_name("python").touch(mode=0o755)
    alone.parent.mkdir()
    alone.touch(mode=0o755)
    for path in (tmp_path / "nowhere", plain, alone):
        with pytest.raises(CommandError, match=r"scripts/peer\.sh.*--vllm PATH or SPOTWISE_PEER_VLLM"):
            find_vllm(path)


def test_a_peer_that_is_there_is_found_with_its_version(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.touch(mode=0o755)
    program.with_name("python").touch(mode=0o755)
    assert os.access(program, os.X_OK)
    assert find_vllm(program) == program
    assert vllm_version(program) == "unknown"
    (tmp_path / "lib" / "python3.11" / "site-packages" / "vllm-0.32.0+cpu.dist-info").mkdir(parents=True)
    assert vllm_version(program) == "0.32.0+cpu"


def test_a_shared_prefix_is_part_of_the_command_line() -> None:
    load = ClosedLoop(streams=2, input_tokens=64, output_tokens=8, requests=2, prefix_tokens=1024)
    command = client_command(Path("/p/vllm"), ServerEndpoint("u", "m"), Path("/m"), load, 1, Path("/r"))
    options = dict(itertools.pairwise(command))
    assert (options["--random-prefix-len"], options["--random-input-len"]) == ("1024", "64")
