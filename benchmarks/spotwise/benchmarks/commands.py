"""The developers' benchmarks as commands of `spotwise bench`."""

from __future__ import annotations

#: Function of each command; `lazy_group.py` imports them.
COMMANDS = {
    "peer": "spotwise.benchmarks.peer:peer",
    "newcomers": "spotwise.benchmarks.newcomers:newcomers",
    "policy": "spotwise.benchmarks.policy:policy",
    "batching": "spotwise.benchmarks.batching:batching",
    "moves": "spotwise.benchmarks.moves:moves",
    "groups": "spotwise.benchmarks.groups:groups",
    "spot": "spotwise.benchmarks.spot:spot",
    "reshape": "spotwise.benchmarks.reshape:reshape",
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
    "simulator": "spotwise.benchmarks.simulator:simulator",
    "simulator-speed": "spotwise.benchmarks.simulator_speed:simulator_speed",
}
