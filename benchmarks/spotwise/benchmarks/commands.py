"""The benchmarks of a checkout as commands: those of users in `spotwise bench`, the developers' in its group `dev`."""

from __future__ import annotations

import typer

from spotwise.cli.lazy_group import lazy_group
from spotwise.simulator.compiled.loading import use_compiled

_ABOUT = "Measure parts of spotwise, for its developers; every benchmark takes --json FILE."
#: Function of each command; `lazy_group.py` imports them.
COMMANDS = {
    "peer": "spotwise.benchmarks.peer:peer",
    "moves": "spotwise.benchmarks.moves:moves",
    "spot": "spotwise.benchmarks.spot:spot",
    "reshape": "spotwise.benchmarks.reshape:reshape",
    "simulator": "spotwise.benchmarks.simulator:simulator",
    "dev": "spotwise.benchmarks.commands:dev",
}
_OF_DEVELOPERS = {
    "newcomers": "spotwise.benchmarks.newcomers:newcomers",
    "policy": "spotwise.benchmarks.policy:policy",
    "batching": "spotwise.benchmarks.batching:batching",
    "groups": "spotwise.benchmarks.groups:groups",
    "groups-at-scale": "spotwise.benchmarks.groups_at_scale:groups_at_scale",
    "large-model": "spotwise.benchmarks.large_model:large_model",
    "weights": "spotwise.benchmarks.weights:weights",
    "memory": "spotwise.benchmarks.memory:memory",
    "transfer": "spotwise.benchmarks.transfer:transfer",
    "agreement": "spotwise.benchmarks.agreement:agreement",
    "scheduler": "spotwise.benchmarks.scheduler:scheduler",
    "planning": "spotwise.benchmarks.planning:planning",
    "control-plane": "spotwise.benchmarks.control_plane:control_plane",
    "adapters": "spotwise.benchmarks.adapters:adapters",
    "structured": "spotwise.benchmarks.structured:structured",
    "crowd": "spotwise.benchmarks.crowd:crowd",
    "simulator-speed": "spotwise.benchmarks.simulator_speed:simulator_speed",
}
#: Commands that only simulate.
_SIMULATING = ("simulator-speed",)

dev = typer.Typer(
    help=_ABOUT,
    no_args_is_help=True,
    add_completion=False,
    cls=lazy_group(_OF_DEVELOPERS, before=lambda name: name in _SIMULATING and use_compiled()),
)


@dev.callback(help=_ABOUT)
def _group() -> None:
    """The group has no options of its own."""
