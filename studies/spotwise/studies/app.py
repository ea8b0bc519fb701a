"""`spotwise simulate paper`: a paper's headlines, its numbers beside ours, a command for each paper."""

from __future__ import annotations

import typer

from spotwise.cli.lazy_group import lazy_group

paper = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    cls=lazy_group(
        {
            "splitwise": "spotwise.studies.splitwise.command:splitwise",
            "fastserve": "spotwise.studies.fastserve.command:fastserve",
            "spotserve": "spotwise.studies.spotserve.command:spotserve",
        }
    ),
)


@paper.callback()
def _group() -> None:
    """Measure the headlines of a paper in the simulator, and put them beside the paper's."""
