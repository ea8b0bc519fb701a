"""The benchmarks, as one group of commands."""

from __future__ import annotations

import typer

from spotwise.cli.bench.agreement import agreement
from spotwise.cli.bench.batching import batching
from spotwise.cli.bench.control_plane import control_plane
from spotwise.cli.bench.load import load
from spotwise.cli.bench.memory import memory
from spotwise.cli.bench.peer import peer
from spotwise.cli.bench.planning import planning
from spotwise.cli.bench.policy import policy
from spotwise.cli.bench.scheduler import scheduler
from spotwise.cli.bench.simulator import simulator
from spotwise.cli.bench.transfer import transfer

bench = typer.Typer(help="Measure a mesh; every benchmark takes --json FILE.", no_args_is_help=True)
bench.command()(load)
bench.command()(peer)
bench.command()(policy)
bench.command()(batching)
bench.command()(memory)
bench.command()(transfer)
bench.command()(agreement)
bench.command()(scheduler)
bench.command()(planning)
bench.command()(control_plane)
bench.command()(simulator)


@bench.callback()
def _group() -> None:
    """Measure a mesh; every benchmark takes --json FILE."""
