"""Options that the simulations share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from spotwise.cli.errors import OptionError
from spotwise.cli.option_groups import OptionGroup
from spotwise.cli.profile_files import read_profile
from spotwise.core.costs.cost_profile import CostProfile
from spotwise.files.tables import TraceError
from spotwise.simulator.costs.hardware import BLOOM_176B, LANGUAGE_MODELS
from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.costs.profile_fit import ProfileError
from spotwise.simulator.loads.trace_files import MOONCAKE_BLOCK_TOKENS
from spotwise.simulator.loads.workload import SYNTHETIC, ArrivalKind, ClusterWorkload
from spotwise.simulator.runs.clusters import DESIGNS, Design, Split

TIMED = (
    "How iterations are timed: as measured (honest), as in the published simulator (published), or like that with "
    "decodes by batch size (by-batch)."
)

WorkloadOption = Annotated[str, typer.Option(help="Sizes of requests as published: code or conv.")]
JobsOption = Annotated[int | None, typer.Option(min=1, help="Processes; by default one a processor.")]
RunsOption = Annotated[
    Path | None,
    typer.Option("--runs", help="Keep runs in this file, and reuse the runs in it: a stopped search resumes."),
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the result to this file.")]


class LoadOptions(OptionGroup):
    """The options that say which requests arrive."""

    workload: WorkloadOption = "conv"
    trace: Annotated[
        Path | None, typer.Option(help="Sizes, or arrivals too, of this file: a CSV, or JSON lines as Mooncake's.")
    ] = None
    arrivals: Annotated[ArrivalKind, typer.Option(help="At random, as in the trace, or as the published runs.")] = (
        ArrivalKind.POISSON
    )
    jointly: Annotated[bool, typer.Option("--jointly", help="Draw a prompt with its answer, not each alone.")] = False
    block_tokens: Annotated[
        int, typer.Option("--block-tokens", min=1, help="Tokens of a block that a trace's hash_ids name.")
    ] = MOONCAKE_BLOCK_TOKENS

    def cluster_workload(self) -> ClusterWorkload:
        """Return the cluster's load; an unknown workload, or a trace's own arrivals without a trace, raise `OptionError`."""
        if self.trace is not None:
            return ClusterWorkload(self.trace.stem, self.trace, self.arrivals, self.jointly, self.block_tokens)
        if self.workload not in SYNTHETIC:
            raise OptionError(f"--workload {self.workload!r}: choose one of {', '.join(SYNTHETIC)}, or give a --trace")
        if self.arrivals is ArrivalKind.TRACE:
            raise OptionError("--arrivals trace: needs a --trace to take arrivals from")
        return ClusterWorkload(self.workload, kind=self.arrivals)


class ModelOptions(OptionGroup):
    """The options that say which model the paper's machines serve, and how they are timed."""

    model: Annotated[str, typer.Option(help="bloom-176b or llama2-70b.")] = BLOOM_176B.name
    decode_model: Annotated[DecodeModel, typer.Option(help=TIMED)] = DecodeModel.HONEST

    def known_model(self) -> str:
        """Return the model's name; an unknown one raises `OptionError`."""
        if self.model not in LANGUAGE_MODELS:
            raise OptionError(f"--model {self.model!r}: choose one of {', '.join(LANGUAGE_MODELS)}")
        return self.model


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
