"""Runs the sides of `spotwise bench peer`: one server at a time, each workload after a warm-up with prompts of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from spotwise.benchmarks.comparison import Failure, Reading
from spotwise.benchmarks.interference import Interference, measure_interference
from spotwise.benchmarks.sides import SPLIT, TUNED, Program, Side
from spotwise.benchmarks.workloads import WORKLOADS, ClosedLoop, PeerWorkload
from spotwise.benchmarks.yardsticks.llama_server import running_llama
from spotwise.benchmarks.yardsticks.stream_check import require_readable_stream
from spotwise.benchmarks.yardsticks.vllm_client import measure_with_client
from spotwise.benchmarks.yardsticks.vllm_server import TUNED_ARGUMENTS, running_vllm
from spotwise.cli.bench.completion import random_prompt, stream_completion
from spotwise.cli.bench.load import run_together
from spotwise.cli.bench.servers import ServerEndpoint, running_mesh
from spotwise.cli.client.gateway_client import GatewayClient
from spotwise.cli.errors import CommandError

#: A mesh with a process for each phase.
SPLIT_ARGUMENTS = ("--prompt-workers", "1", "--token-workers", "1")
#: vLLM's client loses all events after a comment, which breaks a long silence.
_NO_COMMENTS = {"SPOTWISE_STREAM_KEEP_ALIVE_S": "0"}

#: Those that vLLM may be measured in.
DTYPES = ("bfloat16", "float32")
#: vLLM in another dtype is measured, too, where it reaches this share of the better one's output tokens/s.
_CLOSE_SHARE = 0.8
_DTYPE_PROBE = ClosedLoop(streams=4, input_tokens=128, output_tokens=32, requests=8)


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings common to all rounds.

    Attributes:
        vllm: its program, whose client drives all sides.
        llama: the folder of llama.cpp's programs.
        model_folder: Hugging Face layout.
        files: a GGUF file of the model for each kind of weights that is served from one.
    """

    vllm: Path
    llama: Path | None
    model_folder: Path
    files: Mapping[str, Path]
    dtype: str
    up_arguments: tuple[str, ...]
    seed: int


def run_side(
    setting: Setting, side: Side, number: int, workloads: Sequence[PeerWorkload], starts: Callable[[PeerWorkload], None]
) -> Iterator[tuple[PeerWorkload, Reading | Failure]]:
    """Measure these workloads on one side in a round; one that fails does not keep the others from being measured.

    Args:
        starts: called before each workload.
    """
    left = list(workloads)
    try:
        with _server(setting, side, workloads) as endpoint:
            require_readable_stream(endpoint, str(side))
            while left:
                workload = left.pop(0)
                starts(workload)
                try:
                    figures = _measure(setting, endpoint, workload, number)
                except CommandError as error:
                    yield workload, Failure(number, side, workload.name, str(error))
                else:
                    yield workload, Reading(number, side, workload.name, figures)
    except CommandError as error:  # the server does not come up, or its streams cannot be read
        for workload in left:
            yield workload, Failure(number, side, workload.name, str(error))


def close_dtypes(setting: Setting, left_out: Callable[[str], None]) -> dict[str, float]:
    """vLLM's output tokens/s under a small load, in the mesh's dtype and in another that is close to the better one.

    Args:
        left_out: receives why another dtype cannot be measured.

    Raises:
        CommandError: vLLM does not serve in the mesh's dtype.
    """
    rates: dict[str, float] = {}
    for dtype in DTYPES:
        try:
            rates[dtype] = _probe(setting, dtype)
        except CommandError as error:
            if dtype == setting.dtype:
                raise
            left_out(f"vLLM is not measured in {dtype}: {error}")
    return those_close(rates, setting.dtype)


def _probe(setting: Setting, dtype: str) -> float:
    with running_vllm(setting.vllm, setting.model_folder, (), dtype=dtype) as endpoint:
        asyncio.run(_warm_up(endpoint, _DTYPE_PROBE, setting.seed))
        seed = prompt_seed(setting.seed, 0, WORKLOADS[0])
        figures = measure_with_client(setting.vllm, endpoint, setting.model_folder, _DTYPE_PROBE, seed)
        return figures["output_throughput"]


def those_close(rates: Mapping[str, float], dtype: str) -> dict[str, float]:
    """The rates of `dtype`, first, and of the others that are close to the best."""
    best = max(rates.values())
    others = {other: rate for other, rate in rates.items() if other != dtype and rate >= _CLOSE_SHARE * best}
    return {dtype: rates[dtype], **others}


def prompt_seed(seed: int, round_number: int, workload: PeerWorkload, purpose: int = 0) -> int:
    """A seed for each round and workload: no side's prefix cache may answer from an earlier one."""
    index = [each.name for each in WORKLOADS].index(workload.name)
    return seed * 1_000_000 + round_number * 1_000 + index * 10 + purpose


def _server(setting: Setting, side: Side, workloads: Sequence[PeerWorkload]) -> AbstractContextManager[ServerEndpoint]:
    if side.program is Program.SPOTWISE:
        model = str(setting.model_folder if side.weights == setting.dtype else setting.files[side.weights])
        arguments = SPLIT_ARGUMENTS if side.setup == SPLIT else setting.up_arguments
        return running_mesh(("--model", model, "--dtype", setting.dtype, *arguments), _NO_COMMENTS)
    if side.program is Program.VLLM:
        arguments = TUNED_ARGUMENTS if side.setup == TUNED else ()
        return running_vllm(setting.vllm, setting.model_folder, arguments, dtype=side.weights)
    if setting.llama is None:
        raise CommandError(f"{side} is not installed")
    return running_llama(setting.llama, setting.files[side.weights], workloads)


def _measure(setting: Setting, endpoint: ServerEndpoint, workload: PeerWorkload, number: int) -> dict[str, float]:
    asyncio.run(_warm_up(endpoint, workload.load, prompt_seed(setting.seed, number, workload, purpose=1)))
    seed = prompt_seed(setting.seed, number, workload)
    if isinstance(workload.load, ClosedLoop):
        return measure_with_client(setting.vllm, endpoint, setting.model_folder, workload.load, seed)
    return asyncio.run(measure_interference(endpoint, workload.load, seed))


async def _warm_up(endpoint: ServerEndpoint, load: ClosedLoop | Interference, seed: int) -> None:
    rng = random.Random(seed)
    if isinstance(load, ClosedLoop):
        requests = [(load.prefix_tokens + load.input_tokens, load.output_tokens)] * load.streams
    else:
        requests = [(load.steady_input_tokens, load.steady_output_tokens)] * load.steady_streams
        requests.append((load.long_input_tokens, load.long_output_tokens))
    async with GatewayClient(endpoint.url) as client:
        prompts = [(random_prompt(rng, input_tokens), output) for input_tokens, output in requests]
        await run_together(stream_completion(client, endpoint.model, prompt, output) for prompt, output in prompts)
