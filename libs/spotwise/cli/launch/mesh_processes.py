"""The processes of a mesh, as data; a pure function of options, servers and machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from spotwise.cli.launch.fleet_processes import planner_of_fleet, scheduler_of_fleet, watcher_of_fleet
from spotwise.cli.launch.given_options import EngineKind
from spotwise.cli.launch.options import MeshOptions
from spotwise.cli.launch.service_process import (
    ServiceProcess,
    StopOrder,
    common_env,
    gateway_env,
    may_fork,
    service,
)
from spotwise.cli.launch.simulated_processes import simulated_group_processes, simulated_processes, simulated_workers
from spotwise.cli.launch.worker_cores import CoreShare, LocalHost, threads_of
from spotwise.cli.launch.worker_processes import worker, worker_env, worker_processes

#: Each process of a service serves its metrics at a port of its own: the one that is set, and those that follow it.
_METRICS_PORTS = {
    "cluster_scheduler": "SPOTWISE_SCHEDULER_METRICS_PORT",
    "migration_planner": "SPOTWISE_PLANNER_METRICS_PORT",
}


def mesh_processes(
    options: MeshOptions,
    nats_url: str,
    redis_url: str,
    machine: LocalHost,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> tuple[ServiceProcess, ...]:
    """All services: gateways, schedulers, planners, watcher and every worker; `environ`: the supervisor's own environment."""
    common = common_env(options, nats_url, redis_url)
    single_threaded = common | {"OMP_NUM_THREADS": "1"}
    scheduler = planner = watcher = single_threaded
    workers: tuple[ServiceProcess, ...] = ()
    if options.fleet is not None:
        scheduler = single_threaded | scheduler_of_fleet(options.fleet)
        planner = single_threaded | planner_of_fleet(options.fleet)
        watcher = watcher_of_fleet(options, options.fleet, common, machine, forks=may_fork(environ))
    elif options.engine is not EngineKind.SIMULATED:
        workers = worker_processes(options, common, machine)
    elif options.reshapable:
        workers = simulated_group_processes(options, single_threaded)
    else:
        workers = simulated_processes(options, single_threaded)
    gateway = single_threaded | gateway_env(options)
    control = (
        ("cluster_scheduler", "scheduler", options.schedulers, scheduler, True),
        ("migration_planner", "planner", options.planners, planner, False),
        ("spot_watcher", "watcher", 1, watcher, False),
    )
    return (
        *(
            service(options, "gateway", f"gateway-{number}", gateway | {"SPOTWISE_PORT": str(port)}, StopOrder.GATEWAY)
            for number, port in enumerate(options.ports)
        ),
        *workers,
        *(
            replace(
                service(
                    options,
                    module,
                    f"{name}-{number}",
                    {**env, **_metrics_port(module, number, environ)},
                    StopOrder.CONTROL,
                ),
                is_essential=is_essential,
            )
            for module, name, count, env, is_essential in control
            for number in range(count)
        ),
    )


def _metrics_port(module: str, number: int, environ: Mapping[str, str]) -> dict[str, str]:
    setting = _METRICS_PORTS.get(module, "")
    port = environ.get(setting, "")
    return {setting: str(int(port) + number)} if number and port.isdigit() and int(port) else {}


def joining_worker(
    options: MeshOptions, nats_url: str, redis_url: str, pool: str, worker_id: str, machine: LocalHost
) -> ServiceProcess:
    """Plan one more worker for a running mesh: it shares the cores with the present workers, and has none of its own."""
    if options.engine is EngineKind.SIMULATED:
        common = common_env(options, nats_url, redis_url) | {"OMP_NUM_THREADS": "1"}
        return simulated_workers(options, common, pool, (worker_id,))
    sharing = options.num_workers + 1
    share = CoreShare(threads_of(options, sharing, machine))
    return worker(
        options, pool, worker_id, worker_env(options, common_env(options, nats_url, redis_url), pool, sharing, share)
    )
