"""The processes of workers that compute, and what they get of the machine.

Workers share the cores. The native kernels' threads sleep while they wait, so a worker has twice its share of them and uses an
idle partner's cores. Where both compute, the token phase yields: a prompt is long and its user waits, while a token's
iteration is short and needs a small part of the cores to keep pace with a reader. Without these kernels OpenMP's threads
compute, and two teams on the same cores spin against one another: a worker then gets its share of threads and, where there is
a core for each, cores of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from spotwise.cli.launch.options import POOLS, MeshOptions
from spotwise.cli.launch.service_process import ServiceProcess, StopOrder, policy_env, service
from spotwise.engine.native.build import NoKernelsError, ensure_library

#: Niceness of a token worker on shared cores: against a prompt worker it gets about a seventh of a core's time.
_TOKEN_NICENESS = 8


@dataclass(frozen=True, slots=True)
class LocalHost:
    """The machine's resources: the usable cores' numbers, ascending; the native kernels."""

    cores: tuple[int, ...]
    native_kernels: bool

    @classmethod
    def this(cls) -> Self:
        """Inspect the machine this process runs on; compiles missing kernels."""
        try:
            ensure_library()
            native_kernels = True
        except NoKernelsError:
            native_kernels = False
        return cls(tuple(sorted(os.sched_getaffinity(0))), native_kernels)


def threads_of(options: MeshOptions, num_workers: int, machine: LocalHost) -> int:
    """Return the threads of each of so many workers that share the machine."""
    share = max(1, len(machine.cores) // num_workers)
    return options.threads or (min(2 * share, len(machine.cores)) if _sleeps(options, machine) else share)


def _sleeps(options: MeshOptions, machine: LocalHost) -> bool:
    return machine.native_kernels and options.device in ("auto", "cpu") and options.dtype != "float16"


def worker_processes(options: MeshOptions, common: Mapping[str, str], machine: LocalHost) -> tuple[ServiceProcess, ...]:
    """Plan all workers, each of one process or several, and the spare devices."""
    share = len(machine.cores) // options.num_devices
    threads, sharing = threads_of(options, options.num_devices, machine), options.num_devices
    workers: list[ServiceProcess] = []
    pools = [(pool, worker_id) for pool in POOLS for worker_id in options.worker_ids(pool)]
    for index, (pool, worker_id) in enumerate(pools):
        # Pinned to fewer cores than it has threads, a worker would spin against itself.
        own_cores = machine.cores[index * share : (index + 1) * share] if share >= threads else ()
        niceness = _TOKEN_NICENESS if pool == "token" and not own_cores else 0
        shape = options.shape_of(pool)
        if shape.size > 1 or options.reshapable:
            group_threads = 1 if shape.size > 1 else threads
            workers += _group(options, common, pool, worker_id, sharing, niceness, group_threads)
            continue
        workers.append(worker(options, common, pool, worker_id, threads, sharing, own_cores, niceness))
    env = worker(options, common, "mixed", "", options.threads or 1, sharing).env
    return (*workers, *(_device(options, f"device-{number}", env) for number in range(options.spare_devices)))


def _group(
    options: MeshOptions,
    common: Mapping[str, str],
    pool: str,
    worker_id: str,
    sharing: int,
    niceness: int,
    threads: int,
) -> list[ServiceProcess]:
    """Plan a leader and its devices: they wait for one another at every step, so that each has one thread, and all the same
    niceness, unless the user says otherwise.
    """
    shape = options.shape_of(pool)
    leader = worker(options, common, pool, worker_id, options.threads or threads, sharing, niceness=niceness)
    shaped = {"SPOTWISE_STAGES": str(shape.stages), "SPOTWISE_SHARDS": str(shape.shards)}
    if options.reshapable:
        shaped["SPOTWISE_RESHAPABLE"] = "true"
    env = {**leader.env, "SPOTWISE_LEADER_ID": worker_id}
    devices = [_device(options, f"{worker_id}-device-{number}", env) for number in range(1, shape.size)]
    # Its device lives as long as the process; its worker as long as no re-shape ends it.
    return [replace(leader, env={**leader.env, **shaped}, member_ids=(f"{worker_id}-device-0",)), *devices]


def _device(options: MeshOptions, device_id: str, env: Mapping[str, str]) -> ServiceProcess:
    return service(options, "worker.groups", device_id, env, StopOrder.WORKER, later_imports=worker_imports(options))


def worker(
    options: MeshOptions,
    common: Mapping[str, str],
    pool: str,
    worker_id: str,
    threads: int,
    sharing: int,
    own_cores: tuple[int, ...] = (),
    niceness: int = 0,
) -> ServiceProcess:
    """Plan a worker of one process; `sharing`: workers that divide the machine's memory; `own_cores`: it is pinned to them."""
    env = {
        **common,
        "SPOTWISE_DTYPE": options.dtype,
        "SPOTWISE_WEIGHTS": options.weights,
        "SPOTWISE_DEVICE": options.device,
        "SPOTWISE_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
        "SPOTWISE_NICENESS": str(niceness),
        "SPOTWISE_KV_CACHE_BYTES": str(options.kv_cache_bytes or "auto"),
        "SPOTWISE_LOCAL_WORKERS": str(sharing),
        "SPOTWISE_POOL": pool,
        **policy_env(options),
    }
    if options.shared_weights is not None:
        env["SPOTWISE_SHARED_WEIGHTS"] = str(options.shared_weights)
    if options.cost_profiles is not None:
        env["SPOTWISE_COST_PROFILES"] = str(options.cost_profiles)
    if own_cores:
        env["SPOTWISE_CORES"] = ",".join(map(str, own_cores))
    module = "prompt_worker" if pool == "prompt" else "token_worker"
    return service(options, module, worker_id, env, StopOrder.WORKER, later_imports=worker_imports(options))


def worker_imports(options: MeshOptions) -> tuple[str, ...]:
    """Return what every worker imports after its settings: torch and transformers with it, and the model's own code."""
    engine = tuple(f"{options.service_modules}{name}" for name in ("worker.serve", "worker.groups.serve"))
    try:
        model_type = json.loads((options.model_folder / "config.json").read_bytes())["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        return engine  # each worker refuses such a folder, and says why
    name = str(model_type).replace("-", "_")
    return (*engine, f"transformers.models.{name}.modeling_{name}")
