"""The simulations as a group of commands."""

from __future__ import annotations

import typer

from spotwise.cli.simulate.paper import paper
from spotwise.cli.simulate.provision import provision
from spotwise.cli.simulate.run import run

simulate = typer.Typer(
    help="Simulate a cluster with the mesh's own scheduler and workers; every command takes --json FILE.",
    no_args_is_help=True,
)
simulate.command()(run)
simulate.command()(provision)
simulate.add_typer(paper, name="paper")


@simulate.callback()
def _group() -> None:
    """Simulate a cluster with the mesh's own scheduler and workers; every command takes --json FILE."""
