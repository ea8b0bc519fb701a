"""Options of how a simulated cluster batches and routes."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from spotwise.cli.errors import OptionError
from spotwise.core.scheduler.policy import DecodeQueue
from spotwise.core.worker.policy import Reserve, Scheduling
from spotwise.simulator.runs.serving_policy import ServingPolicy

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
