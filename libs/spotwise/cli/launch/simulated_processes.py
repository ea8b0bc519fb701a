"""The processes of simulated workers and devices: they compute nothing, so that many of them share a process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spotwise.cli.launch.given_options import SimulatedKv
from spotwise.cli.launch.options import POOLS, MeshOptions
from spotwise.cli.launch.service_process import ServiceProcess, StopOrder, policy_env, service

#: Members of one process of simulated workers or devices at most; one that pushes real KV has threads and sockets of its own.
_SIMULATED_MEMBERS = {SimulatedKv.TIMED: 50, SimulatedKv.REAL: 10}


def simulated_processes(options: MeshOptions, common: Mapping[str, str]) -> tuple[ServiceProcess, ...]:
    """Spread simulated workers over few processes; a process has workers of one pool, about as many as the others."""
    return tuple(
        simulated_workers(options, common, pool, ids)
        for pool in POOLS
        for ids in _spread(options.worker_ids(pool), _SIMULATED_MEMBERS[options.simulated_kv])
    )


def simulated_group_processes(options: MeshOptions, common: Mapping[str, str]) -> tuple[ServiceProcess, ...]:
    """Spread the devices of simulated groups over few processes: a group's are in one, with its worker; then the spare ones."""
    most = _SIMULATED_MEMBERS[options.simulated_kv]
    processes = []
    for pool in POOLS:
        shape = options.shape_of(pool)
        shaped = {"SPOTWISE_POOL": pool, "SPOTWISE_STAGES": str(shape.stages), "SPOTWISE_SHARDS": str(shape.shards)}
        for ids in _spread(options.worker_ids(pool), max(1, most // (shape.size + 1))):
            devices = tuple(f"{worker_id}-device-{number}" for worker_id in ids for number in range(shape.size))
            env = {**simulated_env(options, common), **shaped, "SPOTWISE_GROUPS": ",".join(ids)}
            processes.append(service(options, "worker.simulated.groups", _name_of(ids), env, StopOrder.WORKER, devices))
    for ids in _spread([f"device-{number}" for number in range(options.spare_devices)], most):
        env = {**simulated_env(options, common), "SPOTWISE_POOL": "mixed", "SPOTWISE_SPARES": ",".join(ids)}
        processes.append(service(options, "worker.simulated.groups", _name_of(ids), env, StopOrder.WORKER, ids))
    return tuple(processes)


def _spread(ids: Sequence[str], most: int) -> list[tuple[str, ...]]:
    """Divide ids among as few processes as hold `most` each, in order and evenly."""
    count = -(-len(ids) // most)
    return [tuple(ids[len(ids) * index // count : len(ids) * (index + 1) // count]) for index in range(count)]


def _name_of(ids: Sequence[str]) -> str:
    """Return the id of a process of several members."""
    return ids[0] if len(ids) == 1 else f"{ids[0]}-to-{ids[-1].rpartition('-')[2]}"


def simulated_workers(
    options: MeshOptions, common: Mapping[str, str], pool: str, worker_ids: tuple[str, ...]
) -> ServiceProcess:
    """Plan one process of simulated workers."""
    env = {**simulated_env(options, common), "SPOTWISE_POOL": pool, "SPOTWISE_MEMBERS": ",".join(worker_ids)}
    return service(options, "worker.simulated", _name_of(worker_ids), env, StopOrder.WORKER, worker_ids)


def simulated_env(options: MeshOptions, common: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of simulated workers and devices."""
    env = {
        **common,
        "SPOTWISE_SPEED": str(options.speed),
        "SPOTWISE_SIMULATED_KV": options.simulated_kv.value,
        **policy_env(options),
    }
    if options.dtype != "auto":
        env["SPOTWISE_DTYPE"] = options.dtype
    if options.kv_cache_bytes is not None:
        env["SPOTWISE_KV_CACHE_BYTES"] = str(options.kv_cache_bytes)
    return env
