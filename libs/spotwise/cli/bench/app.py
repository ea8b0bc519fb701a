"""The benchmarks, as one group of commands."""

from __future__ import annotations

import typer

from spotwise.cli.bench.load import load

bench = typer.Typer(help="Measure a mesh; every benchmark takes --json FILE.", no_args_is_help=True)
bench.command()(load)


@bench.callback()
def _group() -> None:
    """Measure a mesh; every benchmark takes --json FILE."""
