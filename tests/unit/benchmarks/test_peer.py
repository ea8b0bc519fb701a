"""`spotwise bench peer` with servers that fail: each failure is named, the rest is measured, the status is 1."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from spotwise.benchmarks import peer as command
from spotwise.benchmarks import peer_measure
from spotwise.benchmarks.sides import Program, Side
from spotwise.benchmarks.workloads import ClosedLoop
from spotwise.benchmarks.yardsticks.vllm_client import _KEPT
from spotwise.cli.bench.servers import ServerEndpoint
from spotwise.cli.errors import CommandError, OptionError
from tests.unit.benchmarks.fake_completions import DONE, TOKEN, completions, event, usage

#: Of each figure of the client on each side.
FIGURE = {Program.SPOTWISE: 10.0, Program.VLLM: 20.0, Program.LLAMA: 40.0}
NEVER_UP = b"never up"
GOOD = 8 * TOKEN + usage(8) + DONE


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Run the command on servers with these streams; its JSON document, and its exit status beside it."""
    streams: dict[Program, bytes] = {}
    current: list[Side] = []

    @contextlib.contextmanager
    def server(setting: object, side: Side, workloads: object) -> Iterator[ServerEndpoint]:
        if streams.get(side.program) == NEVER_UP:
            raise CommandError(f"{side.program} did not come up")
        current.append(side)
        with completions(streams.get(side.program, GOOD)) as endpoint:
            yield endpoint

    async def warm_up(*_: object) -> None:
        """Nothing is warmed."""

    def measure(vllm: Path, endpoint: ServerEndpoint, tokenizer: Path, load: ClosedLoop, seed: int) -> dict[str, float]:
        if current[-1].program is Program.LLAMA and load.input_tokens == 256:
            raise CommandError("2 of 64 requests failed: 2 x status 500 Internal Server Error: no slot")
        return dict.fromkeys(_KEPT, FIGURE[current[-1].program])

    def found(*_: object) -> Path:
        return tmp_path / "bin"

    for name in ("find_vllm", "find_llama", "weights_file"):
        monkeypatch.setattr(command, name, found)
    monkeypatch.setattr(command, "gguf_of", found)
    located = SimpleNamespace(path=tmp_path, name="tiny")
    monkeypatch.setattr(command, "resolve_with_progress", lambda *_, widens: located if widens else None)
    monkeypatch.setattr(command, "dtype_of_both", lambda _: "float32")
    monkeypatch.setattr(command, "variants", lambda *_: {"spotwise": "float32, kernels avx2"})
    monkeypatch.setattr(command, "close_dtypes", lambda *_: {"float32": 10.0, "bfloat16": 9.0})
    monkeypatch.setattr(peer_measure, "_server", server)
    monkeypatch.setattr(peer_measure, "_warm_up", warm_up)
    monkeypatch.setattr(peer_measure, "measure_with_client", measure)

    def run_peer(given: dict[Program, bytes] | None = None, **options: Any) -> dict[str, Any]:
        streams.update(given or {})
        path, status = tmp_path / "result.json", 0
        arguments: dict[str, Any] = {
            "rounds": 1,
            "workloads": "w1",
            "yardsticks": "vllm,llama.cpp",
            "up_args": "",
            "split": False,
            "vllm": None,
            "vllm_dtype": "auto",
            "llama": None,
            "model": "tiny",
            "gguf": None,
            "skip_peer": None,
            "quick": True,
            "seed": 1,
        }
        try:
            command.peer(**arguments | options, json=path)
        except typer.Exit as ended:
            status = ended.exit_code
        document: dict[str, Any] = json.loads(path.read_bytes())
        return document | {"status": status}

    return run_peer


def test_a_run_without_failures_ends_well(run: Callable[..., dict[str, Any]]) -> None:
    result = run()
    assert (result["status"], result["failures"]) == (0, [])
    assert [reading["side"] for reading in result["rounds"]] == [
        "spotwise float32",
        "vllm float32",
        "llama.cpp float32",
    ]
    assert [row["reference"] for row in result["rows"]] == [20.0, 20.0, 40.0, 40.0]
    assert result["environment"]["variants"] == {"spotwise": "float32, kernels avx2"}
    assert "family" in result["environment"]["processor"]


def test_an_unreadable_stream_is_named(run: Callable[..., dict[str, Any]]) -> None:
    """Before the client is started; the sides that can be read are measured."""
    result = run({Program.VLLM: TOKEN + event('{"choices": [')})
    assert result["status"] == 1
    (failure,) = result["failures"]
    assert failure.startswith("round 1, vllm float32, w1: vLLM's client cannot read a stream of vllm float32")
    assert "JSONDecodeError" in failure and "status 200" in failure and "the body began 'data: " in failure
    assert [reading["side"] for reading in result["rounds"]] == ["spotwise float32", "llama.cpp float32"]


def test_a_failed_request_is_named_and_the_other_workloads_are_measured(run: Callable[..., dict[str, Any]]) -> None:
    result = run(workloads="w1,w2,w3")
    assert result["status"] == 1
    assert result["failures"] == [
        "round 1, llama.cpp float32, w2: 2 of 64 requests failed: 2 x status 500 Internal Server Error: no slot"
    ]
    assert len(result["rounds"]) == 3 * 3 - 1


def test_a_server_that_does_not_come_up_is_named_with_all_that_it_would_run(run: Callable[..., dict[str, Any]]) -> None:
    result = run({Program.LLAMA: NEVER_UP}, workloads="w1,w2")
    assert result["status"] == 1
    assert result["failures"] == [
        f"round 1, llama.cpp float32, {name}: llama.cpp did not come up" for name in ("w1", "w2")
    ]
    assert len(result["rounds"]) == 2 * 2


@pytest.mark.parametrize("refused", ["bfloat16", "float32"])
def test_vllm_need_not_serve_in_the_other_dtype(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """In the mesh's it has to."""

    def probe(_: object, dtype: str) -> float:
        if dtype == refused:
            raise CommandError("no such kernels")
        return 10.0

    monkeypatch.setattr(peer_measure, "_probe", probe)
    setting: Any = SimpleNamespace(dtype="float32")
    reasons: list[str] = []
    if refused == "float32":
        with pytest.raises(CommandError, match=r"^no such kernels$"):
            peer_measure.close_dtypes(setting, reasons.append)
    else:
        assert peer_measure.close_dtypes(setting, reasons.append) == {"float32": 10.0}
        assert reasons == ["vLLM is not measured in bfloat16: no such kernels"]


def test_quantised_files_are_beside_llama_alone(run: Callable[..., dict[str, Any]]) -> None:
    result = run(workloads="w6-q8_0")
    assert [reading["side"] for reading in result["rounds"]] == ["spotwise q8_0", "llama.cpp q8_0"]


def test_a_whole_run_measures_vllm_in_dtypes_that_are_close(run: Callable[..., dict[str, Any]]) -> None:
    sides = [reading["side"] for reading in run(quick=False, yardsticks="vllm")["rounds"]]
    assert sides == ["spotwise float32", "vllm float32", "vllm bfloat16"]
    sides = [reading["side"] for reading in run(vllm_dtype="bfloat16", yardsticks="vllm")["rounds"]]
    assert sides == ["spotwise float32", "vllm bfloat16"]


def test_a_folder_has_no_file_for_llama(run: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "gguf_of", lambda _: None)
    with pytest.raises(OptionError, match=r"--model tiny: llama\.cpp serves GGUF files only; .*--gguf FILE"):
        run()
    with pytest.raises(OptionError, match="--vllm-dtype half: write one of auto, bfloat16, float32, both"):
        run(vllm_dtype="half")
