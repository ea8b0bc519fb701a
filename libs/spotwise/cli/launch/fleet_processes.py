"""Settings of the services of a mesh that buys its instances, in addition to every mesh's settings."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

from spotwise.cli.launch.given_options import EngineKind
from spotwise.cli.launch.options import FleetOptions, MeshOptions
from spotwise.cli.launch.simulated_processes import simulated_env
from spotwise.cli.launch.worker_cores import CoreShare, LocalHost, threads_of
from spotwise.cli.launch.worker_processes import worker_env, worker_imports
from spotwise.mesh.embedded.child_process import identify

_SIMULATED_DEVICE = "spotwise.worker.simulated.groups"
#: Command of a local instance that is one simulated device.
_SIMULATED_INSTANCE = (
    *("env", "SPOTWISE_SERVICE_ID={instance_id}", "SPOTWISE_SPARES={instance_id}"),
    *(sys.executable, "-P", "-m", _SIMULATED_DEVICE),
)


def scheduler_of_fleet(fleet: FleetOptions) -> dict[str, str]:
    """Return the scheduler's settings, by which requests wait for a first instance."""
    given = {"SPOTWISE_MAX_UNREADY_S": fleet.max_unready_s, "SPOTWISE_MAX_QUEUE_S": fleet.max_queue_s}
    return {name: str(value) for name, value in given.items() if value is not None}


def planner_of_fleet(fleet: FleetOptions) -> dict[str, str]:
    """Return the planner's settings: what may be bought."""
    given = {
        "SPOTWISE_FLEET_FILE": fleet.file,
        "SPOTWISE_BUDGET_PER_H": fleet.budget_per_h,
        "SPOTWISE_ON_DEMAND_FLOOR": fleet.on_demand_floor,
        "SPOTWISE_SPARE_INSTANCES": fleet.spares,
        "SPOTWISE_LATENCY_TARGET_S": fleet.latency_target_s,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def watcher_of_fleet(
    options: MeshOptions, fleet: FleetOptions, common: Mapping[str, str], machine: LocalHost, *, forks: bool = True
) -> dict[str, str]:
    """Return the environment of the watcher with the provider, whose local instances are devices with that environment.

    Args:
        forks: local instances are forked from a process that has imported their modules.
    """
    imports: tuple[str, ...] = (_SIMULATED_DEVICE,)
    if options.engine is EngineKind.SIMULATED:
        device = {**simulated_env(options, common), "SPOTWISE_POOL": "mixed", "OMP_NUM_THREADS": "1"}
        device["SPOTWISE_FLEET_COMMAND"] = json.dumps(_SIMULATED_INSTANCE)
        if fleet.profile is not None:
            device.setdefault("SPOTWISE_PROFILE", str(fleet.profile))
    else:
        threads = threads_of(options, fleet.most_devices, machine)
        threads = options.threads or min(threads, max(1, machine.num_cores // fleet.most_devices))
        device = worker_env(options, common, "mixed", fleet.most_devices, CoreShare(threads))
        imports = ("spotwise.worker.groups", *worker_imports(options))
    given = {
        "SPOTWISE_FLEET_FILE": fleet.file,
        "SPOTWISE_FLEET_MESH": options.name,
        "SPOTWISE_FLEET_FOLDER": fleet.folder,
        "SPOTWISE_FLEET_SUPERVISOR": _this_process(),
        "SPOTWISE_FLEET_IMPORTS": ",".join(imports) if forks else None,
        "SPOTWISE_FLEET_TRACE": fleet.trace,
        "SPOTWISE_FLEET_COMPRESS": fleet.compress,
        "SPOTWISE_FLEET_GRACE_S": fleet.grace_s,
    }
    return {**device, **{name: str(value) for name, value in given.items() if value is not None}}


def _this_process() -> str | None:
    """Return the supervisor, with which local instances end, as the watcher reads it."""
    identity = identify(os.getpid())
    return None if identity is None else f"{identity.pid}:{identity.start_ticks}"
