"""The processes of a mesh, as data: command lines, environments, start order; a pure function of options, servers and machine.

Workers share the cores. The native kernels' threads sleep while they wait, so a worker has twice its share of them and uses an
idle partner's cores. Where both compute, the token phase yields: a prompt is long and its user waits, while a token's
iteration is short and needs a small part of the cores to keep pace with a reader. Without these kernels OpenMP's threads
compute, and two teams on the same cores spin against one another: a worker then gets its share of threads and, where there is
a core for each, cores of its own. Simulated workers compute nothing, and share processes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self

import psutil

from spotwise.cli.options import EngineKind, FleetOptions, MeshOptions, SimulatedKv
from spotwise.engine.native.build import NoKernelsError, ensure_library

_DEFAULT_KV_CACHE_LIMIT_BYTES = 4 * 1024**3
_DEFAULT_KV_CACHE_SHARE = 0.25
#: Niceness of a token worker on shared cores: against a prompt worker it gets about a seventh of a core's time.
_TOKEN_NICENESS = 8
_POOLS = ("prompt", "token", "mixed")
#: Members of one process of simulated workers or devices at most; one that pushes real KV has threads and sockets of its own.
_SIMULATED_MEMBERS = {SimulatedKv.TIMED: 50, SimulatedKv.REAL: 10}
#: Command of a local instance that is one simulated device.
_SIMULATED_INSTANCE = (
    *("env", "SPOTWISE_SERVICE_ID={instance_id}", "SPOTWISE_SPARES={instance_id}"),
    *(sys.executable, "-P", "-m", "spotwise.worker.simulated.groups"),
)


class StopOrder(IntEnum):
    """The order in which processes stop: gateway, workers, control plane, broker and store."""

    GATEWAY = 0
    WORKER = 1
    CONTROL = 2
    SERVER = 3


@dataclass(frozen=True, slots=True)
class LocalHost:
    """The machine's resources: the usable cores' numbers, ascending; memory, free or reclaimable; the native kernels."""

    cores: tuple[int, ...]
    available_memory_bytes: int
    native_kernels: bool

    @classmethod
    def this(cls) -> Self:
        """Inspect the machine this process runs on; compiles missing kernels."""
        try:
            ensure_library()
            native_kernels = True
        except NoKernelsError:
            native_kernels = False
        return cls(tuple(sorted(os.sched_getaffinity(0))), psutil.virtual_memory().available, native_kernels)


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """One process to start.

    Attributes:
        service_id: unique in the mesh; its log's name.
        env: variables to set on top of the supervisor's own.
        member_ids: the members it registers as, where they differ from its own id.
        is_essential: whether the mesh serves no request without it; for workers, without any of them.
    """

    service_id: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    stop_order: StopOrder
    member_ids: tuple[str, ...] = ()
    is_essential: bool = True

    @property
    def members(self) -> tuple[str, ...]:
        """The ids of the mesh's members in this process."""
        return self.member_ids or (self.service_id,)


def plan_services(
    options: MeshOptions, nats_url: str, redis_url: str, machine: LocalHost
) -> tuple[ServiceProcess, ...]:
    """All services: gateway, scheduler, planner, watcher and every worker."""
    common = _common(options, nats_url, redis_url)
    single_threaded = common | {"OMP_NUM_THREADS": "1"}
    scheduler = planner = watcher = single_threaded
    workers: tuple[ServiceProcess, ...] = ()
    if options.fleet is not None:
        scheduler = single_threaded | _scheduler_of_fleet(options.fleet)
        planner = single_threaded | _planner_of_fleet(options.fleet)
        watcher = _watcher_of_fleet(options, options.fleet, common, machine)
    elif options.engine is not EngineKind.SIMULATED:
        workers = _plan_workers(options, common, machine)
    elif options.reshapable:
        workers = _plan_simulated_groups(options, single_threaded)
    else:
        workers = _plan_simulated(options, single_threaded)
    gateway = single_threaded | {"SPOTWISE_HOST": options.host, "SPOTWISE_PORT": str(options.port)}
    return (
        _service(options, "gateway", "gateway-0", gateway, StopOrder.GATEWAY),
        *workers,
        _service(options, "cluster_scheduler", "scheduler-0", scheduler, StopOrder.CONTROL),
        *(
            replace(_service(options, module, service_id, env, StopOrder.CONTROL), is_essential=False)
            for module, service_id, env in (
                ("migration_planner", "planner-0", planner),
                ("spot_watcher", "watcher-0", watcher),
            )
        ),
    )


def plan_joining_worker(
    options: MeshOptions, nats_url: str, redis_url: str, pool: str, worker_id: str, machine: LocalHost
) -> ServiceProcess:
    """Plan one more worker for a running mesh: it shares the cores with the present workers, and has none of its own."""
    if options.engine is EngineKind.SIMULATED:
        common = _common(options, nats_url, redis_url) | {"OMP_NUM_THREADS": "1"}
        return _simulated_workers(options, common, pool, (worker_id,))
    threads, kv_cache_bytes = _shares(options, options.num_workers + 1, machine)
    return _worker(options, _common(options, nats_url, redis_url), pool, worker_id, threads, kv_cache_bytes)


def _scheduler_of_fleet(fleet: FleetOptions) -> dict[str, str]:
    """Let requests wait for a first instance."""
    given = {"SPOTWISE_MAX_UNREADY_S": fleet.max_unready_s, "SPOTWISE_MAX_QUEUE_S": fleet.max_queue_s}
    return {name: str(value) for name, value in given.items() if value is not None}


def _planner_of_fleet(fleet: FleetOptions) -> dict[str, str]:
    given = {
        "SPOTWISE_FLEET_FILE": fleet.file,
        "SPOTWISE_BUDGET_PER_H": fleet.budget_per_h,
        "SPOTWISE_ON_DEMAND_FLOOR": fleet.on_demand_floor,
        "SPOTWISE_SPARE_INSTANCES": fleet.spares,
        "SPOTWISE_LATENCY_TARGET_S": fleet.latency_target_s,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def _watcher_of_fleet(
    options: MeshOptions, fleet: FleetOptions, common: Mapping[str, str], machine: LocalHost
) -> dict[str, str]:
    """Plan the watcher with the provider, whose local instances are devices with its own environment."""
    if options.engine is EngineKind.SIMULATED:
        device = {**_simulated_env(options, common), "SPOTWISE_POOL": "mixed", "OMP_NUM_THREADS": "1"}
        device["SPOTWISE_FLEET_COMMAND"] = json.dumps(_SIMULATED_INSTANCE)
        if fleet.profile is not None:
            device.setdefault("SPOTWISE_PROFILE", str(fleet.profile))
    else:
        threads, kv_cache_bytes = _shares(options, fleet.most_devices, machine)
        threads = options.threads or min(threads, max(1, len(machine.cores) // fleet.most_devices))
        device = dict(_worker(options, common, "mixed", "", threads, kv_cache_bytes).env)
    given = {
        "SPOTWISE_FLEET_FILE": fleet.file,
        "SPOTWISE_FLEET_MESH": options.name,
        "SPOTWISE_FLEET_FOLDER": fleet.folder,
        "SPOTWISE_FLEET_TRACE": fleet.trace,
        "SPOTWISE_FLEET_COMPRESS": fleet.compress,
        "SPOTWISE_FLEET_GRACE_S": fleet.grace_s,
    }
    return {**device, **{name: str(value) for name, value in given.items() if value is not None}}


def _common(options: MeshOptions, nats_url: str, redis_url: str) -> dict[str, str]:
    return {
        "SPOTWISE_NATS_URL": nats_url,
        "SPOTWISE_REDIS_URL": redis_url,
        "SPOTWISE_MODEL_DIR": str(options.model_folder),
        "SPOTWISE_MODEL_NAME": options.model_name,
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def _shares(options: MeshOptions, num_workers: int, machine: LocalHost) -> tuple[int, int]:
    share = max(1, len(machine.cores) // num_workers)
    threads = options.threads or (min(2 * share, len(machine.cores)) if _sleeps(options, machine) else share)
    kv_cache_bytes = options.kv_cache_bytes or min(
        _DEFAULT_KV_CACHE_LIMIT_BYTES,
        int(machine.available_memory_bytes * _DEFAULT_KV_CACHE_SHARE) // num_workers,
    )
    return threads, kv_cache_bytes


def _sleeps(options: MeshOptions, machine: LocalHost) -> bool:
    return machine.native_kernels and options.device in ("auto", "cpu") and options.dtype != "float16"


def _plan_workers(options: MeshOptions, common: Mapping[str, str], machine: LocalHost) -> tuple[ServiceProcess, ...]:
    share = len(machine.cores) // options.num_devices
    threads, kv_cache_bytes = _shares(options, options.num_devices, machine)
    workers: list[ServiceProcess] = []
    for index, (pool, number) in enumerate(_pool_members(options)):
        # Pinned to fewer cores than it has threads, a worker would spin against itself.
        own_cores = machine.cores[index * share : (index + 1) * share] if share >= threads else ()
        niceness = _TOKEN_NICENESS if pool == "token" and not own_cores else 0
        shape = options.shape_of(pool)
        if shape.size > 1 or options.reshapable:
            group_threads = 1 if shape.size > 1 else threads
            workers += _group(options, common, pool, f"{pool}-{number}", kv_cache_bytes, niceness, group_threads)
            continue
        workers.append(_worker(options, common, pool, f"{pool}-{number}", threads, kv_cache_bytes, own_cores, niceness))
    env = _worker(options, common, "mixed", "", options.threads or 1, kv_cache_bytes).env
    return (*workers, *(_device(options, f"device-{number}", env) for number in range(options.spare_devices)))


def _group(
    options: MeshOptions,
    common: Mapping[str, str],
    pool: str,
    worker_id: str,
    kv_cache_bytes: int,
    niceness: int,
    threads: int,
) -> list[ServiceProcess]:
    """Plan a leader and its devices: they wait for one another at every step, so that each has one thread, and all the same
    niceness, unless the user says otherwise.
    """
    shape = options.shape_of(pool)
    leader = _worker(options, common, pool, worker_id, options.threads or threads, kv_cache_bytes, niceness=niceness)
    shaped = {"SPOTWISE_STAGES": str(shape.stages), "SPOTWISE_SHARDS": str(shape.shards)}
    if options.reshapable:
        shaped["SPOTWISE_RESHAPABLE"] = "true"
    env = {**leader.env, "SPOTWISE_LEADER_ID": worker_id}
    devices = [_device(options, f"{worker_id}-device-{number}", env) for number in range(1, shape.size)]
    # Its device lives as long as the process; its worker as long as no re-shape ends it.
    return [replace(leader, env={**leader.env, **shaped}, member_ids=(f"{worker_id}-device-0",)), *devices]


def _device(options: MeshOptions, device_id: str, env: Mapping[str, str]) -> ServiceProcess:
    return _service(options, "worker.groups", device_id, env, StopOrder.WORKER)


def _worker(
    options: MeshOptions,
    common: Mapping[str, str],
    pool: str,
    worker_id: str,
    threads: int,
    kv_cache_bytes: int,
    own_cores: tuple[int, ...] = (),
    niceness: int = 0,
) -> ServiceProcess:
    env = {
        **common,
        "SPOTWISE_DTYPE": options.dtype,
        "SPOTWISE_DEVICE": options.device,
        "SPOTWISE_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
        "SPOTWISE_NICENESS": str(niceness),
        "SPOTWISE_KV_CACHE_BYTES": str(kv_cache_bytes),
        "SPOTWISE_POOL": pool,
        **_policy(options),
    }
    if options.shared_weights is not None:
        env["SPOTWISE_SHARED_WEIGHTS"] = str(options.shared_weights)
    if options.cost_profiles is not None:
        env["SPOTWISE_COST_PROFILES"] = str(options.cost_profiles)
    if own_cores:
        env["SPOTWISE_CORES"] = ",".join(map(str, own_cores))
    module = "prompt_worker" if pool == "prompt" else "token_worker"
    return _service(options, module, worker_id, env, StopOrder.WORKER)


def _plan_simulated(options: MeshOptions, common: Mapping[str, str]) -> tuple[ServiceProcess, ...]:
    """Spread simulated workers over few processes; a process has workers of one pool, about as many as the others."""
    return tuple(
        _simulated_workers(options, common, pool, ids)
        for pool in _POOLS
        for ids in _spread(_ids_of(options, pool), _SIMULATED_MEMBERS[options.simulated_kv])
    )


def _plan_simulated_groups(options: MeshOptions, common: Mapping[str, str]) -> tuple[ServiceProcess, ...]:
    """Spread the devices of simulated groups over few processes: a group's are in one, with its worker; then the spare ones."""
    most = _SIMULATED_MEMBERS[options.simulated_kv]
    processes = []
    for pool in _POOLS:
        shape = options.shape_of(pool)
        shaped = {"SPOTWISE_POOL": pool, "SPOTWISE_STAGES": str(shape.stages), "SPOTWISE_SHARDS": str(shape.shards)}
        for ids in _spread(_ids_of(options, pool), max(1, most // (shape.size + 1))):
            devices = tuple(f"{worker_id}-device-{number}" for worker_id in ids for number in range(shape.size))
            env = {**_simulated_env(options, common), **shaped, "SPOTWISE_GROUPS": ",".join(ids)}
            processes.append(
                _service(options, "worker.simulated.groups", _name_of(ids), env, StopOrder.WORKER, devices)
            )
    for ids in _spread([f"device-{number}" for number in range(options.spare_devices)], most):
        env = {**_simulated_env(options, common), "SPOTWISE_POOL": "mixed", "SPOTWISE_SPARES": ",".join(ids)}
        processes.append(_service(options, "worker.simulated.groups", _name_of(ids), env, StopOrder.WORKER, ids))
    return tuple(processes)


def _spread(ids: Sequence[str], most: int) -> list[tuple[str, ...]]:
    """Divide ids among as few processes as hold `most` each, in order and evenly."""
    count = -(-len(ids) // most)
    return [tuple(ids[len(ids) * index // count : len(ids) * (index + 1) // count]) for index in range(count)]


def _name_of(ids: Sequence[str]) -> str:
    """Return the id of a process of several members."""
    return ids[0] if len(ids) == 1 else f"{ids[0]}-to-{ids[-1].rpartition('-')[2]}"


def _simulated_workers(
    options: MeshOptions, common: Mapping[str, str], pool: str, worker_ids: tuple[str, ...]
) -> ServiceProcess:
    env = {**_simulated_env(options, common), "SPOTWISE_POOL": pool, "SPOTWISE_MEMBERS": ",".join(worker_ids)}
    return _service(options, "worker.simulated", _name_of(worker_ids), env, StopOrder.WORKER, worker_ids)


def _simulated_env(options: MeshOptions, common: Mapping[str, str]) -> dict[str, str]:
    env = {
        **common,
        "SPOTWISE_SPEED": str(options.speed),
        "SPOTWISE_SIMULATED_KV": options.simulated_kv.value,
        **_policy(options),
    }
    if options.kv_cache_bytes is not None:
        env["SPOTWISE_KV_CACHE_BYTES"] = str(options.kv_cache_bytes)
    return env


def _policy(options: MeshOptions) -> dict[str, str]:
    given = {
        "SPOTWISE_POLICY": options.policy,
        "SPOTWISE_PROFILE": options.profile,
        "SPOTWISE_KV_HOST_BYTES": options.kv_host_bytes,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def _pool_members(options: MeshOptions) -> list[tuple[str, int]]:
    pools = {"prompt": options.prompt_workers, "token": options.token_workers, "mixed": options.mixed_workers}
    return [(pool, number) for pool, count in pools.items() for number in range(count)]


def _ids_of(options: MeshOptions, pool: str) -> list[str]:
    return [f"{pool}-{number}" for member_of, number in _pool_members(options) if member_of == pool]


def _service(
    options: MeshOptions,
    module: str,
    service_id: str,
    env: Mapping[str, str],
    stop_order: StopOrder,
    member_ids: tuple[str, ...] = (),
) -> ServiceProcess:
    # -P: the user's working folder must not shadow an installed package.
    argv = (sys.executable, "-P", "-m", f"{options.service_modules}{module}")
    return ServiceProcess(service_id, argv, {**env, "SPOTWISE_SERVICE_ID": service_id}, stop_order, member_ids)
