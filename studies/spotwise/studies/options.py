"""Options of the studies, and the published files that they name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotwise.cli.bench.report import require_plotting, require_writable
from spotwise.cli.errors import OptionError
from spotwise.simulator.loads.workload import ClusterWorkload

DataOption = Annotated[
    Path | None,
    typer.Option(
        envvar="SPOTWISE_DATA",
        help="Folder with the published files: traces/, profiles/ and spot-traces/; without, their percentiles and fits.",
    ),
]
SeedsOption = Annotated[
    int | None, typer.Option(min=1, help="Seeds that figures are means over; by default 3 (fastserve: 2).")
]
StudiesOption = Annotated[str | None, typer.Option(help="Names of studies, separated by commas; by default all.")]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="One seed, short runs, few values: minutes instead of hours, and coarse.")
]
CheckOption = Annotated[
    bool, typer.Option("--check", help="End with status 1 where a headline is not about the paper's.")
]
FiguresOption = Annotated[Path | None, typer.Option(help="Draw the paper's figures into this folder.")]


def require_outputs(json: Path | None, runs: Path | None, figures: Path | None) -> None:
    """Raise `OptionError` before minutes of simulation if a file is not writable or nothing can be drawn."""
    if figures is not None:
        require_plotting(figures / "figure.png", "--figures")
    require_writable(json)
    require_writable(runs, "--runs")


class PublishedFiles:
    """The published files of a folder with `traces/` and `profiles/`; `None` for a missing one; all missing: `OptionError`."""

    def __init__(self, folder: Path | None) -> None:
        def file(*parts: str) -> Path | None:
            path = None if folder is None else folder.joinpath(*parts)
            return path if path is not None and path.is_file() else None

        self.traces = {name: file("traces", f"AzureLLMInferenceTrace_{name}.csv") for name in ("code", "conv")}
        self.profile = file("profiles", "splitwise_perf_model.csv")
        self.runs = file("profiles", "splitwise_sim_replay.csv")
        if folder is not None and not any((*self.traces.values(), self.profile, self.runs)):
            raise OptionError(f"--data {folder}: neither traces/ nor profiles/ with the published files are there")

    def workloads(self) -> dict[str, ClusterWorkload]:
        """Return workloads of the traces, or of their percentiles where there is no trace."""
        return {name: ClusterWorkload(name, path) for name, path in self.traces.items()}
