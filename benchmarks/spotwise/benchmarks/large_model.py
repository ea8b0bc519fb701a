"""`spotwise bench dev large-model`: a model larger than any process's memory limit, served by several, each with that limit.

The model is a Llama with random weights and the default model's tokenizer. The same prompts go to one process without a limit,
to the group, and to one process with the limit. That one either is ended by the limit, or computes with weights that the kernel
drops and reads from their file again and again.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer
import uvloop
from transformers import AutoModelForCausalLM, LlamaConfig

from spotwise.benchmarks.group_faults import undisturbed
from spotwise.benchmarks.groups import parse_shapes
from spotwise.benchmarks.memory_limits import MemoryLimits
from spotwise.cli.bench.completion import random_prompt
from spotwise.cli.bench.report import (
    ReportRow,
    Target,
    environment,
    progress_bar,
    report_console,
    require_writable,
    write_report,
)
from spotwise.cli.bench.servers import MeshEndpoint, running_mesh
from spotwise.cli.errors import CommandError, OptionError
from spotwise.cli.launch.given_options import parse_size
from spotwise.cli.launch.run_folder import cache_folder
from spotwise.engine.model.model_store import DEFAULT_MODEL, resolve_model

_HIDDEN, _INNER, _HEADS, _KV_HEADS, _VOCABULARY = 2048, 5632, 32, 4, 49152
_LAYER_BYTES = 2 * (2 * _HIDDEN**2 + 2 * _HIDDEN * _HIDDEN * _KV_HEADS // _HEADS + 3 * _HIDDEN * _INNER)
_ENDS_BYTES = 2 * 2 * _VOCABULARY * _HIDDEN
#: The processes that load a model.
_LOADING = ("spotwise.token_worker", "spotwise.prompt_worker", "spotwise.worker")


@dataclass(frozen=True, slots=True)
class Answered:
    """The answers of one mesh, and the seconds of all of them side by side."""

    token_ids: list[list[int]]
    seconds: float


def large_model(
    size: Annotated[str, typer.Option(help="Bytes of the model's weights.")] = "2.4GiB",
    limit: Annotated[str, typer.Option(help="Bytes of memory of each process.")] = "1.5GiB",
    shape: Annotated[str, typer.Option(help="Stages x shards.")] = "2x2",
    streams: Annotated[int, typer.Option(min=1, help="Answers side by side.")] = 2,
    input_tokens: Annotated[int, typer.Option(min=1)] = 64,
    output_tokens: Annotated[int, typer.Option(min=1)] = 32,
    kv_cache: Annotated[str, typer.Option(help="Of each process.")] = "64MiB",
    seed: Annotated[int, typer.Option(min=0, help="Of weights and prompts.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Serve a model of random weights by processes whose memory is limited below its size."""
    require_writable(json)
    model_bytes, limit_bytes = int(parse_size(size, "--size")), int(parse_size(limit, "--limit"))
    if limit_bytes >= model_bytes:
        raise OptionError(f"--limit {limit}: one process could hold --size {size}; give it less")
    stages, shards = parse_shapes(shape, "--shape")[0]
    rng = random.Random(seed)
    prompts = [random_prompt(rng, input_tokens) for _ in range(streams)]
    console = report_console()
    with progress_bar(console) as progress, tempfile.TemporaryDirectory(prefix="spotwise-large-") as parent:
        task = progress.add_task("making the model", total=4)
        folder = Path(parent) / "large"
        weight_bytes = make_model(folder, model_bytes, seed)
        common = ("--model", str(folder), "--kv-cache", kv_cache, "--dtype", "bfloat16")
        progress.update(task, description="one process without a limit", advance=1)
        alone = _answers(Path(parent), ("--parallel", "1,1,1", *common), prompts, output_tokens)
        progress.update(task, description=f"{shape} with a limit", advance=1)
        limits = MemoryLimits(limit_bytes, is_loading)
        group = _answers(Path(parent), ("--parallel", f"1,{stages},{shards}", *common), prompts, output_tokens, limits)
        progress.update(task, description="one process with a limit", advance=1)
        too_small = MemoryLimits(limit_bytes, is_loading)
        limited_s: float | None
        try:
            limited = _answers(Path(parent), ("--parallel", "1,1,1", *common), prompts, output_tokens, too_small)
            limited_s = limited.seconds
        except CommandError:
            limited_s = None  # it never served
    wrong = sum(differing(*pair) for pair in zip(group.token_ids, alone.token_ids, strict=True))
    mib = 2**20
    rows = [
        ReportRow("weights, MiB", weight_bytes / mib),
        ReportRow("limit of a process, MiB", limit_bytes / mib, weight_bytes / mib, Target(at_most=1.0)),
        *(
            ReportRow(
                f"most memory of process {number}, its files in the cache included, MiB",
                peak / mib,
                limit_bytes / mib,
            )
            for number, peak in enumerate(limits.peak_bytes)
        ),
        ReportRow(f"{shape}: processes ended by their limit", limits.killed),
        ReportRow(f"{shape}: tokens other than those of one process", wrong),
        ReportRow(f"{shape}: seconds of all answers", group.seconds, alone.seconds),
        ReportRow("one process with the limit: times that it was ended", too_small.killed),
    ]
    if limited_s is not None:
        name = f"{shape}: seconds of all answers, beside one process with the limit"
        rows.append(ReportRow(name, group.seconds, limited_s))
    settings = {"limit": limit, "shape": shape, "streams": streams, "seed": seed, "kv_cache": kv_cache}
    about = environment(**settings, input_tokens=input_tokens, output_tokens=output_tokens)
    write_report(rows, about, json, console, lambda figure: f"{figure:,.2f}")
    if wrong or limits.killed or len(limits.peak_bytes) < stages * shards:
        raise typer.Exit(1)


def differing(ours: list[int], theirs: list[int]) -> int:
    """Return how many tokens of two answers differ; `ValueError` where one is shorter."""
    return sum(a != b for a, b in zip(ours, theirs, strict=True))


def is_loading(command: str) -> bool:
    """Whether a command line is that of a process that loads a model."""
    return any(module in command for module in _LOADING)


def make_model(folder: Path, model_bytes: int, seed: int) -> int:
    """Write the model, and return the bytes of its weights; raises `OptionError` where so few bytes are no layer."""
    layers = round((model_bytes - _ENDS_BYTES) / _LAYER_BYTES)
    if layers < 2:
        raise OptionError(f"--size: give it at least {(_ENDS_BYTES + 2 * _LAYER_BYTES) / 2**30:.1f} GiB")
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=_HIDDEN,
        intermediate_size=_INNER,
        num_hidden_layers=layers,
        num_attention_heads=_HEADS,
        num_key_value_heads=_KV_HEADS,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    torch.manual_seed(seed)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    default = resolve_model(DEFAULT_MODEL, cache_folder()).path
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(default / name, folder / name)
    return sum(parameter.nbytes for parameter in model.parameters())


def _answers(
    folder: Path, arguments: tuple[str, ...], prompts: list[list[int]], tokens: int, limits: MemoryLimits | None = None
) -> Answered:
    # What an earlier mesh left in its cache would not count for this one.
    env = {"SPOTWISE_CACHE": tempfile.mkdtemp(dir=folder)}
    with limits.applied() if limits is not None else nullcontext(), running_mesh(arguments, env) as endpoint:
        return _timed(endpoint, prompts, tokens)


def _timed(endpoint: MeshEndpoint, prompts: list[list[int]], tokens: int) -> Answered:
    began_s = time.perf_counter()
    token_ids = uvloop.run(undisturbed(endpoint, prompts, tokens))
    return Answered(token_ids, time.perf_counter() - began_s)
