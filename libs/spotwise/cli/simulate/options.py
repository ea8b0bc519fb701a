"""Options that the simulations share, and those of how a simulated cluster batches and routes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from spotwise.cli.errors import OptionError
from spotwise.cli.profile_files import read_profile
from spotwise.core.costs.cost_profile import CostProfile
from spotwise.core.scheduler.policy import DecodeQueue
from spotwise.core.worker.policy import Reserve, Scheduling
from spotwise.files.tables import TraceError
from spotwise.simulator.costs.hardware import LANGUAGE_MODELS
from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.costs.profile_fit import ProfileError
from spotwise.simulator.loads.synthetic import SYNTHETIC
from spotwise.simulator.loads.trace_files import MOONCAKE_BLOCK_TOKENS
from spotwise.simulator.loads.workload import ArrivalKind, ClusterWorkload
from spotwise.simulator.runs.clusters import Design, Split
from spotwise.simulator.runs.designs import DESIGNS
from spotwise.simulator.runs.serving_policy import ServingPolicy

TIMED = (
    "How iterations are timed: as measured (honest), as in the published simulator (published), or like that with "
    "decodes by batch size (by-batch)."
)

WorkloadOption = Annotated[str, typer.Option(help="Sizes of requests as published: code or conv.")]
TraceOption = Annotated[
    Path | None, typer.Option(help="Sizes, or arrivals too, of this file: a CSV, or JSON lines as Mooncake's.")
]
BlockTokensOption = Annotated[
    int, typer.Option("--block-tokens", min=1, help="Tokens of a block that a trace's hash_ids name.")
]
ArrivalsOption = Annotated[ArrivalKind, typer.Option(help="At random, as in the trace, or as the published runs.")]
JointlyOption = Annotated[bool, typer.Option("--jointly", help="Draw a prompt with its answer, not each alone.")]
ModelOption = Annotated[str, typer.Option(help="bloom-176b or llama2-70b.")]
DecodeModelOption = Annotated[DecodeModel, typer.Option(help=TIMED)]
JobsOption = Annotated[int | None, typer.Option(min=1, help="Processes; by default one a processor.")]
RunsOption = Annotated[
    Path | None,
    typer.Option("--runs", help="Keep runs in this file, and reuse the runs in it: a stopped search resumes."),
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the result to this file.")]


def parse_design(text: str) -> Design:
    """Return a design by its name, short (`HA`) or full (`Splitwise-HA`); an unknown one raises `OptionError`."""
    for name, design in DESIGNS.items():
        if text.lower() in (name.lower(), name.partition("-")[2].lower()):
            return design
    raise OptionError(f"--design {text!r}: choose one of {', '.join(DESIGNS)}")


def parse_designs(text: str) -> list[Design]:
    """Return designs by their names, each once; an unknown name raises `OptionError`."""
    return list(dict.fromkeys(parse_design(part.strip()) for part in text.split(",")))


def parse_split(text: str, design: Design, option: str = "--machines") -> Split:
    """Return numbers of machines: `25,15`, or `40` for a baseline; other text, or a wrong design: `OptionError`."""
    split = _split(text)
    if split is None or (split.token == 0) != (design.token is None):
        example = "one number, like 40" if design.token is None else "prompt and token machines, like 25,15"
        raise OptionError(f"{option} {text!r}: {design.name} takes {example}")
    return split


def parse_recorded_split(text: str | None, recorded: CostProfile) -> Split:
    """Return numbers of recorded machines: `4,2`, which needs a recorded hand-off cost, or `6` mixed; else `OptionError`."""
    split = _split(text or "")
    if split is None:
        raise OptionError(
            f"--machines {text or ''!r}: no numbers of recorded machines; give prompt and token machines, like 4,2, or 6 mixed"
        )
    if split.token and recorded.link is None:
        raise OptionError(
            f"--machines {text!r}: the profile has no cost of hand-offs; give one number, of mixed machines, or record a "
            "mesh with prompt workers and token workers by `spotwise profile`"
        )
    return split


def _split(text: str) -> Split | None:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        return None
    return Split(*numbers) if len(numbers) <= 2 and min(numbers) > 0 else None


def recorded_profile(path: Path | None) -> CostProfile | None:
    """Return a cost profile in JSON, as `spotwise profile` writes it, or TOML; `None` for another file, like a CSV, or without
    one. Such a file that is no profile raises `OptionError`.
    """
    return None if path is None or path.suffix.lower() not in (".json", ".toml") else read_profile(path, "--profile")


def parse_model(text: str) -> str:
    """Return a known language model's name; an unknown one raises `OptionError`."""
    if text not in LANGUAGE_MODELS:
        raise OptionError(f"--model {text!r}: choose one of {', '.join(LANGUAGE_MODELS)}")
    return text


def parse_workload(
    name: str, trace: Path | None, kind: ArrivalKind, *, jointly: bool, block_tokens: int = MOONCAKE_BLOCK_TOKENS
) -> ClusterWorkload:
    """Return the cluster's load; an unknown workload, or a trace's own arrivals without a trace, raise `OptionError`."""
    if trace is not None:
        return ClusterWorkload(trace.stem, trace, kind, jointly, block_tokens)
    if name not in SYNTHETIC:
        raise OptionError(f"--workload {name!r}: choose one of {', '.join(SYNTHETIC)}, or give a --trace")
    if kind is ArrivalKind.TRACE:
        raise OptionError("--arrivals trace: needs a --trace to take arrivals from")
    return ClusterWorkload(name, kind=kind)


def processors(jobs: int | None) -> int:
    """Return the number of processes: as configured, or one a processor."""
    return jobs or len(os.sched_getaffinity(0))


@contextmanager
def command_errors() -> Iterator[None]:
    """Turn a `TraceError` or `ProfileError` (a wrong file or design) into an `OptionError`."""
    try:
        yield
    except (TraceError, ProfileError) as error:
        raise OptionError(str(error)) from error


ChunkTokensOption = Annotated[int | None, typer.Option(min=256, help="Chunked prefill: most tokens of an iteration.")]
DisciplineOption = Annotated[
    Scheduling | None,
    typer.Option("--policy", help="Order of the sequences: fcfs by default; srpt knows answers' lengths."),
]
ReserveOption = Annotated[
    Reserve | None,
    typer.Option(help="KV blocks as sequences grow (on_demand), or for all that they may have (max_tokens)."),
]
DecodeQueueOption = Annotated[
    DecodeQueue | None, typer.Option(help="What a decode adds to the queue of a machine for both phases.")
]
BreakEvenOption = Annotated[
    bool | None,
    typer.Option(
        "--break-even/--no-break-even", help="Both phases on one machine where splitting costs more than it saves."
    ),
]
RepurposeOption = Annotated[
    float | None,
    typer.Option(
        "--repurpose-window", min=0, help="Seconds in which a machine may change its home pool; 0: none does."
    ),
]


def with_options(policy: ServingPolicy, **options: Any) -> ServingPolicy:
    """Return a policy with the options that were given, by its fields; raises `OptionError` where they do not go together."""
    try:
        return replace(policy, **{name: value for name, value in options.items() if value is not None})
    except ValueError as error:
        raise OptionError(f"--policy, --reserve, --chunk-tokens: {error}") from error
