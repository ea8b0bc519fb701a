"""vLLM's own benchmark client, `vllm bench serve`, against any server, so that neither side is favoured."""

from __future__ import annotations

import collections
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from spotwise.benchmarks.workloads import ClosedLoop
from spotwise.benchmarks.yardsticks import vllm_reasons
from spotwise.benchmarks.yardsticks.vllm_server import python_of, vllm_environment
from spotwise.cli.bench.servers import ServerEndpoint
from spotwise.cli.errors import CommandError

#: The fields kept from the client's result.
_KEPT = (
    "duration",
    "output_throughput",
    "total_token_throughput",
    "median_ttft_ms",
    "p99_ttft_ms",
    "median_tpot_ms",
    "p99_tpot_ms",
    "median_itl_ms",
    "p99_itl_ms",
)
_RESULT_NAME = "result.json"


def find_vllm(given: Path | None) -> Path:
    """vLLM's program: `given`, else that of `scripts/peer.sh`; raises `CommandError` where it, or the Python beside it, is not
    installed.
    """
    vllm = given or Path.home() / ".cache" / "spotwise-peer" / "bin" / "vllm"
    if not all(path.is_file() and os.access(path, os.X_OK) for path in (vllm, python_of(vllm))):
        raise CommandError(
            f"{vllm} is no program with a Python beside it; install the peer with `scripts/peer.sh`, or "
            "name the `vllm` of an environment that "
            "has vLLM's CPU build with --vllm PATH or SPOTWISE_PEER_VLLM"
        )
    return vllm.absolute()


def vllm_version(vllm: Path) -> str:
    """The version installed beside this program, without starting it."""
    found = vllm.parent.parent.glob("lib/python3*/site-packages/vllm-*.dist-info")
    return next((path.name.removeprefix("vllm-").removesuffix(".dist-info") for path in found), "unknown")


def client_command(
    vllm: Path, endpoint: ServerEndpoint, tokenizer: Path, load: ClosedLoop, seed: int, folder: Path
) -> list[str]:
    """The client's command line; it writes its result into `folder`."""
    return [
        # -P: the modules beside it are spotwise's.
        *(str(python_of(vllm)), "-P", vllm_reasons.__file__),
        *("bench", "serve", "--backend", "openai", "--base-url", endpoint.url),
        *("--model", endpoint.model, "--tokenizer", str(tokenizer)),
        *("--dataset-name", "random", "--seed", str(seed), "--ignore-eos", "--temperature", "0"),
        *("--random-input-len", str(load.input_tokens), "--random-output-len", str(load.output_tokens)),
        *("--random-prefix-len", str(load.prefix_tokens)),
        *("--num-prompts", str(load.requests), "--max-concurrency", str(load.streams)),
        *("--percentile-metrics", "ttft,tpot,itl", "--metric-percentiles", "99", "--disable-tqdm"),
        # In detail: without it the client keeps to itself why requests failed.
        *("--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", _RESULT_NAME),
    ]


def measure_with_client(
    vllm: Path, endpoint: ServerEndpoint, tokenizer: Path, load: ClosedLoop, seed: int
) -> dict[str, float]:
    """Run the client once; its figures by its own names; raises `CommandError` where it failed or an answer is incomplete."""
    with tempfile.TemporaryDirectory(prefix="spotwise-bench-") as name:
        folder = Path(name)
        command = client_command(vllm, endpoint, tokenizer, load, seed, folder)
        done = subprocess.run(command, env=vllm_environment(), capture_output=True, text=True, check=False)
        result = folder / _RESULT_NAME
        if done.returncode or not result.is_file():
            end = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
            raise CommandError(f"vLLM's client ended with status {done.returncode}:\n{end}")
        return read_result(orjson.loads(result.read_bytes()), load)


def read_result(result: Mapping[str, Any], load: ClosedLoop) -> dict[str, float]:
    """The figures of one of the client's result files.

    Raises:
        CommandError: a request failed, tokens are missing, or the file's format is unknown.
    """
    missing = [key for key in (*_KEPT, "completed", "total_output_tokens") if key not in result]
    if missing:
        raise CommandError(f"vLLM's client wrote no {', '.join(missing)}; use vLLM 0.32")
    if result["completed"] != load.requests:
        reasons = collections.Counter(
            error.strip().splitlines()[-1] for error in result.get("errors", ()) if error.strip()
        )
        shown = "; ".join(f"{count} x {reason}" for reason, count in sorted(reasons.items()))
        unknown = "vLLM's client gives no reason; look at the log of the server that it measured"
        failed = load.requests - result["completed"]
        raise CommandError(f"{failed} of {load.requests} requests failed: {shown or unknown}")
    expected_tokens = load.requests * load.output_tokens
    if result["total_output_tokens"] != expected_tokens:
        raise CommandError(f"{result['total_output_tokens']} tokens came back where {expected_tokens} were requested")
    return {key: float(result[key]) for key in _KEPT}
