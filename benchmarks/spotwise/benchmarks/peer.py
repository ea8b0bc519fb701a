"""`spotwise bench peer`: the whole mesh against vLLM, on the same cores, with the same weights and the same client.

One side's server runs at a time, in alternating order; no prompt is sent twice to one server.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.progress import Progress

from spotwise.benchmarks.comparison import (
    Reading,
    Side,
    readings_as_json,
    readings_from_json,
    rows_of,
    sides_of,
)
from spotwise.benchmarks.interference import measure_interference
from spotwise.benchmarks.rounds import in_order_of_round
from spotwise.benchmarks.vllm_client import find_vllm, measure_with_client, vllm_version
from spotwise.benchmarks.vllm_server import TUNED_ARGUMENTS, dtype_of_both, running_vllm, vllm_environment
from spotwise.benchmarks.workloads import ClosedLoop, PeerWorkload, choose_workloads
from spotwise.cli.bench.completion import random_prompt, stream_completion
from spotwise.cli.bench.load import run_together
from spotwise.cli.bench.report import environment, progress_bar, report_console, require_writable, write_report
from spotwise.cli.bench.servers import ServerEndpoint, running_mesh, up_arguments
from spotwise.cli.client.gateway_client import GatewayClient
from spotwise.cli.errors import CommandError, OptionError
from spotwise.cli.launch.model_options import resolve_with_progress
from spotwise.engine.model.model_store import DEFAULT_MODEL

#: Our advice for one machine with few cores; and a mesh with a process for each phase.
_ONE_WORKER = "--prompt-workers 0 --token-workers 0 --mixed-workers 1"
_SPLIT_ARGUMENTS = ("--prompt-workers", "1", "--token-workers", "1")


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings common to all rounds."""

    vllm: Path
    model: str
    model_folder: Path
    dtype: str
    up_arguments: tuple[str, ...]
    seed: int


def peer(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each of all sides in alternating order.")] = 3,
    workloads: Annotated[str, typer.Option(help="Which of w1, w2, w3, w4.")] = "w1,w2,w3,w4",
    up_args: Annotated[str, typer.Option(help="Passed on to `spotwise up`.")] = _ONE_WORKER,
    split: Annotated[bool, typer.Option(help="Measure a mesh of one prompt and one token worker, too.")] = True,
    vllm: Annotated[
        Path | None,
        typer.Option(envvar="SPOTWISE_PEER_VLLM", help="vLLM's program; by default where scripts/peer.sh puts it."),
    ] = None,
    model: Annotated[str, typer.Option(help="A folder, a GGUF file or a hub id; both sides serve it.")] = DEFAULT_MODEL,
    skip_peer: Annotated[
        Path | None, typer.Option(help="Take the peer's figures from an earlier --json FILE; for a quick look.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One round of few requests: shows that it runs.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of all prompts.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Compare a mesh of its own with vLLM's CPU build, in alternation."""
    require_writable(json)
    console = report_console()
    chosen = choose_workloads(workloads, quick=quick)
    rounds = 1 if quick else rounds
    reused, reused_from = ([], None) if skip_peer is None else read_peer(skip_peer, chosen)
    program = find_vllm(vllm)  # Its client drives our side too.
    located = resolve_with_progress(model, console, widens=True)
    setting = Setting(program, model, located.path, dtype_of_both(located.path), tuple(up_arguments(up_args)), seed)
    sides = tuple(
        side for side in Side if not (side.is_peer and skip_peer) and not (side is Side.OURS_SPLIT and not split)
    )
    readings = [*reused]
    with progress_bar(console) as progress:
        total = rounds * sum(side in sides for workload in chosen for side in sides_of(workload))
        task = progress.add_task("", total=total)
        for number in range(1, rounds + 1):
            for side in in_order_of_round(number, sides):
                progress.update(task, description=f"round {number} of {rounds}, {side}: starting")
                for workload, reading in _run_side(setting, side, number, chosen, progress, task):
                    readings.append(reading)
                    first = workload.figures[0]
                    console.print(
                        f"round {number}, {side}, {workload.name}: {first.title} {reading.figures[first.key]:,.1f}"
                    )
    if reused_from is not None:
        console.print(f"the peer's figures are reused from {reused_from}", style="yellow", markup=False)
    about = environment(
        model=located.name,
        dtype=setting.dtype,
        rounds=rounds,
        seed=seed,
        quick=quick,
        up_args=up_args,
        split_up_args=" ".join(_SPLIT_ARGUMENTS) if split else None,
        vllm=vllm_version(program),
        vllm_settings={name: value for name, value in vllm_environment().items() if name.startswith("VLLM_")},
        tuned_peer=" ".join(TUNED_ARGUMENTS),
        peer_figures="measured in this run" if reused_from is None else f"reused from {reused_from}",
        workloads={workload.name: workload.shape for workload in chosen},
    )
    write_report(
        rows_of(chosen, readings),
        about,
        json,
        console,
        lambda figure: f"{figure:,.1f}",
        rounds=readings_as_json(readings),
    )


def read_peer(path: Path, workloads: Sequence[PeerWorkload]) -> tuple[list[Reading], str]:
    """The peer's readings in an earlier report, with place and time; raises `OptionError` where the workloads differ."""
    try:
        document: dict[str, Any] = orjson.loads(path.read_bytes())
        about = document["environment"]
        shapes, when = dict(about["workloads"]), str(about["measured_at"])
        readings = [reading for reading in readings_from_json(document["rounds"]) if reading.side.is_peer]
    except OSError as error:
        raise OptionError(f"--skip-peer {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OptionError(f"--skip-peer {path}: this is no result of `spotwise bench peer --json`") from error
    for workload in workloads:
        sides = {reading.side for reading in readings if reading.workload == workload.name}
        wanted = {side for side in sides_of(workload) if side.is_peer}
        if shapes.get(workload.name) != workload.shape or not sides.issuperset(wanted):
            raise CommandError(
                f"--skip-peer {path}: it has no figures of the peer for {workload.name} ({workload.shape})"
            )
    chosen = {workload.name for workload in workloads}
    return [reading for reading in readings if reading.workload in chosen], f"{path.name}, measured at {when}"


def prompt_seed(seed: int, round_number: int, workload: PeerWorkload, purpose: int = 0) -> int:
    """A seed for each round and workload: neither side's prefix cache may answer from an earlier one."""
    return seed * 1_000_000 + round_number * 1_000 + int(workload.name.removeprefix("w")) * 10 + purpose


def _run_side(
    setting: Setting, side: Side, number: int, workloads: Sequence[PeerWorkload], progress: Progress, task: Any
) -> Iterator[tuple[PeerWorkload, Reading]]:
    own = [workload for workload in workloads if side in sides_of(workload)]
    if not own:
        return
    with _server(setting, side) as endpoint:
        for workload in own:
            progress.update(task, description=f"round {number}, {side}: {workload.name}")
            figures = _measure(setting, endpoint, workload, number)
            progress.advance(task)
            yield workload, Reading(number, side, workload.name, figures)


def _server(setting: Setting, side: Side) -> AbstractContextManager[ServerEndpoint]:
    if not side.is_peer:
        arguments = _SPLIT_ARGUMENTS if side is Side.OURS_SPLIT else setting.up_arguments
        return running_mesh(("--model", setting.model, "--dtype", setting.dtype, *arguments))
    arguments = TUNED_ARGUMENTS if side is Side.TUNED_PEER else ()
    return running_vllm(setting.vllm, setting.model_folder, arguments, dtype=setting.dtype)


def _measure(setting: Setting, endpoint: ServerEndpoint, workload: PeerWorkload, number: int) -> dict[str, float]:
    asyncio.run(_warm_up(endpoint, workload, prompt_seed(setting.seed, number, workload, purpose=1)))
    seed = prompt_seed(setting.seed, number, workload)
    if isinstance(workload.load, ClosedLoop):
        return measure_with_client(setting.vllm, endpoint, setting.model_folder, workload.load, seed)
    return asyncio.run(measure_interference(endpoint, workload.load, seed))


async def _warm_up(endpoint: ServerEndpoint, workload: PeerWorkload, seed: int) -> None:
    rng = random.Random(seed)
    load = workload.load
    if isinstance(load, ClosedLoop):
        requests = [(load.input_tokens, load.output_tokens)] * load.streams
    else:
        requests = [(load.steady_input_tokens, load.steady_output_tokens)] * load.steady_streams
        requests.append((load.long_input_tokens, load.long_output_tokens))
    async with GatewayClient(endpoint.url) as client:
        prompts = [(random_prompt(rng, input_tokens), output) for input_tokens, output in requests]
        await run_together(stream_completion(client, endpoint.model, prompt, output) for prompt, output in prompts)
