"""`spotwise bench peer`: the whole mesh against vLLM and llama.cpp, on the same cores, with the same weights and client.

One side's server runs at a time, in alternating order; no prompt is sent twice to one server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from spotwise.benchmarks.comparison import (
    Failure,
    Reading,
    readings_as_json,
    readings_from_json,
    rows_of,
)
from spotwise.benchmarks.peer_measure import DTYPES, SPLIT_ARGUMENTS, Setting, close_dtypes, run_side
from spotwise.benchmarks.rounds import in_order_of_round
from spotwise.benchmarks.sides import ComparedSides, Program, parse_yardsticks
from spotwise.benchmarks.workloads import PeerWorkload, choose_workloads
from spotwise.benchmarks.yardsticks.llama_server import find_llama, weights_file
from spotwise.benchmarks.yardsticks.variants import processor, variants
from spotwise.benchmarks.yardsticks.vllm_client import find_vllm
from spotwise.benchmarks.yardsticks.vllm_server import TUNED_ARGUMENTS, dtype_of_both, vllm_environment
from spotwise.cli.bench.report import environment, progress_bar, report_console, require_writable, write_report
from spotwise.cli.bench.servers import up_arguments
from spotwise.cli.errors import CommandError, OptionError
from spotwise.cli.launch.model_options import resolve_with_progress
from spotwise.cli.launch.run_folder import cache_folder
from spotwise.engine.model.errors import ModelError
from spotwise.engine.model.model_store import DEFAULT_MODEL, gguf_of

#: Our advice for one machine with few cores.
_ONE_WORKER = "--prompt-workers 0 --token-workers 0 --mixed-workers 1"
_AUTO, _BOTH = "auto", "both"


def peer(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each of all sides in alternating order.")] = 3,
    workloads: Annotated[
        str | None, typer.Option(help="Some of w1 to w4, w6 to w10; by default all, with --quick those up to w6.")
    ] = None,
    yardsticks: Annotated[str, typer.Option(help="Which of vllm, llama.cpp.")] = "vllm,llama.cpp",
    up_args: Annotated[str, typer.Option(help="Passed on to `spotwise up`.")] = _ONE_WORKER,
    split: Annotated[bool, typer.Option(help="Measure a mesh of one prompt and one token worker, too.")] = True,
    vllm: Annotated[
        Path | None,
        typer.Option(envvar="SPOTWISE_PEER_VLLM", help="vLLM's program; by default where scripts/peer.sh puts it."),
    ] = None,
    vllm_dtype: Annotated[
        str,
        typer.Option(
            help="bfloat16, float32, both; auto: the mesh's, and the other where a probe finds it close (not with --quick)."
        ),
    ] = _AUTO,
    llama: Annotated[
        Path | None,
        typer.Option(
            envvar="SPOTWISE_PEER_LLAMA",
            help="The folder of llama.cpp's programs; by default where scripts/peer_llama.sh puts them.",
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="A folder, a GGUF file or a hub id; all sides serve it.")] = DEFAULT_MODEL,
    gguf: Annotated[
        Path | None, typer.Option(help="The model's weights for llama.cpp, where --model is no GGUF file.")
    ] = None,
    skip_peer: Annotated[
        Path | None, typer.Option(help="Take the yardsticks' figures from an earlier --json FILE; for a quick look.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One round of few requests: shows that it runs.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of all prompts.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Compare a mesh of its own with vLLM's CPU build and with llama.cpp's server, in alternation."""
    require_writable(json)
    console = report_console()
    programs = parse_yardsticks(yardsticks)
    if vllm_dtype not in (_AUTO, _BOTH, *DTYPES):
        raise OptionError(f"--vllm-dtype {vllm_dtype}: write one of {', '.join((_AUTO, *DTYPES, _BOTH))}")
    chosen = choose_workloads(workloads, quick=quick, quantised=Program.LLAMA in programs)
    rounds = 1 if quick else rounds
    vllm_program = find_vllm(vllm)  # Its client drives all sides.
    needs_llama = Program.LLAMA in programs
    llama_folder = find_llama(llama) if needs_llama else None
    located = resolve_with_progress(model, console, widens=True)
    dtype = dtype_of_both(located.path)
    files = {} if llama_folder is None else _weights_files(llama_folder, _source(model, gguf), dtype, chosen, console)
    setting = Setting(vllm_program, llama_folder, located.path, files, dtype, tuple(up_arguments(up_args)), seed)
    compared = ComparedSides(dtype, _given_dtypes(vllm_dtype, dtype, programs), programs, split)
    reused, reused_from = ([], None) if skip_peer is None else read_peer(skip_peer, chosen, compared)
    probed = {}
    measures_vllm = Program.VLLM in programs and skip_peer is None and any(each.weights is None for each in chosen)
    if measures_vllm and vllm_dtype == _AUTO and not quick:
        with console.status("which dtypes of vLLM are close"):
            probed = close_dtypes(setting, lambda why: console.print(why, style="yellow", markup=False))
        compared = replace(compared, vllm_dtypes=tuple(probed))
    ran_on = processor()
    used = variants(dtype, compared.vllm_dtypes if measures_vllm else (), vllm_program, llama_folder, located.path)
    for line in (ran_on, *(f"{name}: {variant}" for name, variant in used.items())):
        console.print(line, style="dim", markup=False)
    readings, failures = _run(setting, compared, rounds, chosen, console, reused, with_yardsticks=skip_peer is None)
    if reused_from is not None:
        console.print(f"the yardsticks' figures are reused from {reused_from}", style="yellow", markup=False)
    about = environment(
        model=located.name,
        processor=ran_on,
        variants=used,
        dtype=dtype,
        rounds=rounds,
        seed=seed,
        quick=quick,
        up_args=up_args,
        split_up_args=" ".join(SPLIT_ARGUMENTS) if split else None,
        vllm_settings={name: value for name, value in vllm_environment().items() if name.startswith("VLLM_")},
        vllm_dtypes_probed=probed,
        tuned_vllm=" ".join(TUNED_ARGUMENTS),
        gguf={weights: path.name for weights, path in files.items()},
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
        failures=[str(failure) for failure in failures],
    )
    for failure in failures:
        console.print(str(failure), style="red", markup=False)
    if failures:
        raise typer.Exit(1)


def read_peer(path: Path, workloads: Sequence[PeerWorkload], compared: ComparedSides) -> tuple[list[Reading], str]:
    """The yardsticks' readings in an earlier report, with place and time; raises `OptionError` where the file is no report,
    `CommandError` where a workload has another shape there, or no figures of a yardstick.
    """
    try:
        document: dict[str, Any] = orjson.loads(path.read_bytes())
        about = document["environment"]
        shapes, when = dict(about["workloads"]), str(about["measured_at"])
        readings = [reading for reading in readings_from_json(document["rounds"]) if reading.side.is_yardstick]
    except OSError as error:
        raise OptionError(f"--skip-peer {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OptionError(f"--skip-peer {path}: this is no result of `spotwise bench peer --json`") from error
    for workload in workloads:
        found = {reading.side for reading in readings if reading.workload == workload.name}
        wanted = {side for side in compared.sides_of(workload) if side.is_yardstick}
        if shapes.get(workload.name) != workload.shape or not found >= wanted:
            lacking = ", ".join(sorted(map(str, wanted - found))) or "a yardstick"
            raise CommandError(
                f"--skip-peer {path}: it has no figures of {lacking} for {workload.name} ({workload.shape})"
            )
    chosen = {workload.name for workload in workloads}
    return [reading for reading in readings if reading.workload in chosen], f"{path.name}, measured at {when}"


def _run(
    setting: Setting,
    compared: ComparedSides,
    rounds: int,
    workloads: Sequence[PeerWorkload],
    console: Console,
    reused: Sequence[Reading],
    *,
    with_yardsticks: bool,
) -> tuple[list[Reading], list[Failure]]:
    """Run all rounds; returns the reused readings with the new ones, and what failed."""
    readings, failures = [*reused], []
    own = {
        side: [each for each in workloads if side in compared.sides_of(each)]
        for side in compared.sides(workloads)
        if with_yardsticks or not side.is_yardstick
    }
    with progress_bar(console) as progress:
        task = progress.add_task("", total=rounds * sum(map(len, own.values())))
        for number in range(1, rounds + 1):
            for side in in_order_of_round(number, list(own)):
                place = f"round {number} of {rounds}, {side}"
                progress.update(task, description=f"{place}: starting")

                def starts(workload: PeerWorkload, place: str = place) -> None:
                    progress.update(task, description=f"{place}: {workload.name}")

                for workload, result in run_side(setting, side, number, own[side], starts):
                    progress.advance(task)
                    if isinstance(result, Failure):
                        failures.append(result)
                        console.print(str(result), style="red", markup=False)
                        continue
                    readings.append(result)
                    first = workload.figures[0]
                    shown = f"{first.title} {result.figures[first.key]:,.1f}"
                    console.print(f"round {number}, {side}, {workload.name}: {shown}", markup=False)
    return readings, failures


def _given_dtypes(given: str, dtype: str, programs: Sequence[Program]) -> tuple[str, ...]:
    if Program.VLLM not in programs:
        return ()
    return {_AUTO: (dtype,), _BOTH: DTYPES}.get(given, (given,))


def _source(model: str, gguf: Path | None) -> Path:
    try:
        source = gguf or gguf_of(model)
    except ModelError as error:
        raise CommandError(str(error)) from error
    if source is None:
        raise OptionError(
            f"--model {model}: llama.cpp serves GGUF files only; name one that was made from the same weights with --gguf FILE "
            "(llama.cpp's convert_hf_to_gguf.py makes it), or leave llama.cpp out with --yardsticks vllm"
        )
    return source


def _weights_files(
    llama: Path, source: Path, dtype: str, workloads: Sequence[PeerWorkload], console: Console
) -> dict[str, Path]:
    files = {}
    for weights in dict.fromkeys(workload.weights or dtype for workload in workloads):
        with console.status(f"the model's weights as {weights}, for llama.cpp"):
            files[weights] = weights_file(llama, source, weights, cache_folder() / "peer")
    return files
