"""`spotwise bench dev adapters`: what adapters cost: streams with one, with several and with none, in turns, on one mesh."""

from __future__ import annotations

import json as json_format
import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from safetensors.numpy import save_file

from spotwise.benchmarks.rounds import medians_ms, row_of_rounds, run_rounds
from spotwise.cli.bench.load import StreamShape
from spotwise.cli.bench.report import Target, environment, report_console, require_writable, write_report
from spotwise.cli.bench.servers import mesh_of
from spotwise.cli.launch.model_options import resolve_with_progress
from spotwise.engine.model.adapter_files import CONFIG_FILE, PREFIX, WEIGHTS_FILE
from spotwise.engine.model.checkpoint import read_checkpoint
from spotwise.engine.model.model_store import DEFAULT_MODEL

#: Linear layers of a decoder layer of the common form: all that are fused.
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_PLAIN, _ONE, _SEVERAL = "none", "one", "several"
_TARGET = Target(at_most=1.5)


def write_adapter(folder: Path, model_folder: Path, rank: int, seed: int) -> Path:
    """Write an adapter with small random weights for every linear layer of a model of the common form."""
    random = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for tensor in read_checkpoint(model_folder).tensors:
        path = tensor.name.removesuffix(".weight")
        if path.rpartition(".")[2] in TARGETS:
            outputs, inputs = tensor.shape
            tensors[f"{PREFIX}{path}.lora_A.weight"] = 0.01 * random.standard_normal((rank, inputs), np.float32)
            tensors[f"{PREFIX}{path}.lora_B.weight"] = 0.01 * random.standard_normal((outputs, rank), np.float32)
    folder.mkdir()
    save_file(tensors, folder / WEIGHTS_FILE)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": TARGETS}
    (folder / CONFIG_FILE).write_text(json_format.dumps(config))
    return folder


def adapters(
    streams: Annotated[int, typer.Option(min=1, help="Streams at a time.")] = 16,
    count: Annotated[
        int, typer.Option(min=1, help="Adapters of the side with several; streams take them in turn.")
    ] = 4,
    rank: Annotated[int, typer.Option(min=1, help="Of each adapter, in every linear layer.")] = 16,
    output_tokens: Annotated[int, typer.Option(min=2)] = 96,
    input_tokens: Annotated[int, typer.Option(min=1)] = 64,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each stream, in each round.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of all sides, in alternating order.")] = 5,
    model: Annotated[str, typer.Option(help="A folder, a GGUF file or a hub id.")] = DEFAULT_MODEL,
    up_args: Annotated[str, typer.Option(help="Passed on to `spotwise up`.")] = "",
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of prompts and adapters.")] = 1,
) -> None:
    """Compare TPOT and TTFT with one adapter, with several and with none, side by side; target: TPOT within 1.5 times."""
    require_writable(json)
    console = report_console()
    names = [f"adapter-{number}" for number in range(count)]
    sides = {_PLAIN: {}, _ONE: {"models": names[:1]}, _SEVERAL: {"models": names}}
    shape = StreamShape(streams, requests, input_tokens, output_tokens, seed)
    with tempfile.TemporaryDirectory() as home:
        model_folder = resolve_with_progress(model, console, widens=True).path
        given = ["--model", model]
        for number, name in enumerate(names):
            folder = write_adapter(Path(home) / name, model_folder, rank, seed + number)
            given += ["--adapter", f"{name}={folder}"]
        with mesh_of(None, f"{shlex.join(given)} {up_args}") as mesh:
            measured = run_rounds(console, mesh.url, shape, rounds, sides)
    plain_tpot_ms, plain_ttft_ms = medians_ms(measured[_PLAIN])
    rows = []
    for side, label in ((_ONE, "one adapter"), (_SEVERAL, f"{count} adapters")):
        tpot_ms, ttft_ms = medians_ms(measured[side])
        rows += [
            row_of_rounds(f"{label}: TPOT p50, ms", tpot_ms, plain_tpot_ms, _TARGET),
            row_of_rounds(f"{label}: TTFT p50, ms", ttft_ms, plain_ttft_ms),
        ]
    about = environment(
        streams=streams, rank=rank, input_tokens=input_tokens, output_tokens=output_tokens, rounds=rounds
    )
    write_report(rows, about, json, console, lambda figure: f"{figure:,.1f}")
