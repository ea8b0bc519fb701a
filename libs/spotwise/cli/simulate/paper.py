"""`spotwise simulate paper`: a paper's headlines, its numbers beside ours, a command for each paper."""

from __future__ import annotations

import typer

from spotwise.cli.simulate.fastserve import fastserve
from spotwise.cli.simulate.splitwise import splitwise
from spotwise.cli.simulate.spotserve import spotserve

paper = typer.Typer(no_args_is_help=True)
paper.command()(splitwise)
paper.command()(fastserve)
paper.command()(spotserve)


@paper.callback()
def _group() -> None:
    """Measure the headlines of a paper in the simulator, and put them beside the paper's."""
