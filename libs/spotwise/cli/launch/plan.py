"""The processes of a mesh, as data; a pure function of options, servers and machine."""

from __future__ import annotations

from dataclasses import replace

from spotwise.cli.launch.fleet_plan import planner_of_fleet, scheduler_of_fleet, watcher_of_fleet
from spotwise.cli.launch.service_process import ServiceProcess, StopOrder, common_env, gateway_env, service
from spotwise.cli.launch.simulated_plan import plan_simulated, plan_simulated_groups, simulated_workers
from spotwise.cli.launch.worker_plan import LocalHost, plan_workers, shares, worker
from spotwise.cli.options import EngineKind, MeshOptions


def plan_services(
    options: MeshOptions, nats_url: str, redis_url: str, machine: LocalHost
) -> tuple[ServiceProcess, ...]:
    """All services: gateway, scheduler, planner, watcher and every worker."""
    common = common_env(options, nats_url, redis_url)
    single_threaded = common | {"OMP_NUM_THREADS": "1"}
    scheduler = planner = watcher = single_threaded
    workers: tuple[ServiceProcess, ...] = ()
    if options.fleet is not None:
        scheduler = single_threaded | scheduler_of_fleet(options.fleet)
        planner = single_threaded | planner_of_fleet(options.fleet)
        watcher = watcher_of_fleet(options, options.fleet, common, machine)
    elif options.engine is not EngineKind.SIMULATED:
        workers = plan_workers(options, common, machine)
    elif options.reshapable:
        workers = plan_simulated_groups(options, single_threaded)
    else:
        workers = plan_simulated(options, single_threaded)
    gateway = single_threaded | gateway_env(options)
    return (
        service(options, "gateway", "gateway-0", gateway, StopOrder.GATEWAY),
        *workers,
        service(options, "cluster_scheduler", "scheduler-0", scheduler, StopOrder.CONTROL),
        *(
            replace(service(options, module, service_id, env, StopOrder.CONTROL), is_essential=False)
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
        common = common_env(options, nats_url, redis_url) | {"OMP_NUM_THREADS": "1"}
        return simulated_workers(options, common, pool, (worker_id,))
    threads, kv_cache_bytes = shares(options, options.num_workers + 1, machine)
    return worker(options, common_env(options, nats_url, redis_url), pool, worker_id, threads, kv_cache_bytes)
