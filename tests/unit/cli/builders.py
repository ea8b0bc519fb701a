"""Options, records and profiles of meshes, as the tests of the command line need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from spotwise.cli.launch.options import MeshOptions
from spotwise.cli.launch.supervision.run_state import RunState
from spotwise.cli.launch.worker_cores import LocalHost
from spotwise.core.costs.cost_profile import BUILT_IN, CostProfile
from spotwise.files.cost_profile import profile_as_dict
from spotwise.mesh.embedded.child_process import ProcessIdentity
from spotwise.worker.topology import Node, Topology


def mesh_options(**changes: Any) -> MeshOptions:
    return MeshOptions(**{"name": "default", "model_folder": Path("/m"), "model_name": "m", **changes})


def local_host(cores: int = 2, *, native: bool = False) -> LocalHost:
    """A machine with one NUMA node, without a second thread for a core."""
    return LocalHost(Topology((Node(0, tuple((cpu,) for cpu in range(cores))),)), native)


def run_state(**changes: Any) -> RunState:
    """The record of a mesh that has come up, without services."""
    usual = {
        "supervisor": ProcessIdentity(1, 1),
        "ready": True,
        "options": mesh_options(),
        "nats_url": "nats://127.0.0.1:1",
        "redis_url": "redis://127.0.0.1:2/0",
        "started_unix_s": 0.0,
        "services": {},
    }
    return RunState(**{**usual, **changes})


def write_profile(path: Path, profile: CostProfile = BUILT_IN, **changes: Any) -> Path:
    """Write a cost profile, with other values for some keys of its document."""
    path.write_bytes(orjson.dumps(profile_as_dict(profile) | changes))
    return path
