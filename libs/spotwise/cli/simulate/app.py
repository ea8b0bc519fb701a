"""The simulations as a group of commands."""

from __future__ import annotations

import typer

from spotwise.cli.lazy_group import lazy_group
from spotwise.simulator.compiled.loading import use_compiled

simulate = typer.Typer(
    help="Simulate a cluster with the mesh's own scheduler and workers; every command takes --json FILE.",
    no_args_is_help=True,
    add_completion=False,
    cls=lazy_group(
        {
            "run": "spotwise.cli.simulate.run:run",
            "spot": "spotwise.cli.simulate.spot:spot",
            "provision": "spotwise.cli.simulate.provision:provision",
            "paper": "spotwise.cli.simulate.papers.app:paper",
            "compile": "spotwise.cli.simulate.compiling:compile_simulator",
        },
        before=lambda name: use_compiled(),
    ),
)


@simulate.callback()
def _group() -> None:
    """Simulate a cluster with the mesh's own scheduler and workers; every command takes --json FILE."""
