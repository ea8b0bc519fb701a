"""The developers' benchmarks as commands of `spotwise bench`."""

from __future__ import annotations

import typer

from spotwise.benchmarks.agreement import agreement
from spotwise.benchmarks.batching import batching
from spotwise.benchmarks.control_plane import control_plane
from spotwise.benchmarks.memory import memory
from spotwise.benchmarks.peer import peer
from spotwise.benchmarks.planning import planning
from spotwise.benchmarks.policy import policy
from spotwise.benchmarks.scheduler import scheduler
from spotwise.benchmarks.simulator import simulator
from spotwise.benchmarks.transfer import transfer


def add_commands(group: typer.Typer) -> None:
    """Add every developer benchmark to the group."""
    for command in (
        peer,
        policy,
        batching,
        memory,
        transfer,
        agreement,
        scheduler,
        planning,
        control_plane,
        simulator,
    ):
        group.command()(command)
