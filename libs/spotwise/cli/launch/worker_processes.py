"""The processes of workers that compute, and what they get of the machine: cores (`worker_cores.py`), memory and weights.

Where processes share cores, the token phase yields: a prompt is long and its user waits, while a token's iteration is short and
needs a small part of the cores to keep pace with a reader.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spotwise.cli.launch.options import POOLS, GroupShape, MeshOptions
from spotwise.cli.launch.service_process import ServiceProcess, StopOrder, policy_env, service
from spotwise.cli.launch.worker_cores import CoreShare, LocalHost, core_shares
from spotwise.worker.topology import Node, format_cpus

#: Niceness of a token worker on shared cores: against a prompt worker it gets about a seventh of a core's time.
_TOKEN_NICENESS = 8
#: Bytes of weights in memory over those in the folder at most: a folder's bfloat16 may be computed in float32.
_WIDENED = 2
#: Share of the free memory that copies of the weights may take: the rest is for KV and for what workers compute with.
_COPIES_SHARE = 1 / 2
_WEIGHT_FILES = ("*.safetensors", "*.bin", "*.gguf")


def worker_processes(options: MeshOptions, common: Mapping[str, str], machine: LocalHost) -> tuple[ServiceProcess, ...]:
    """Plan all workers, each of one process or several, and the spare devices."""
    shares = core_shares(options, options.num_devices, machine)
    has_copies = _copies_fit(options, [share.nodes for share in shares], machine)
    left = iter(shares)

    def env(pool: str, share: CoreShare, niceness: int = 0) -> dict[str, str]:
        return worker_env(options, common, pool, options.num_devices, share, niceness, has_copies=has_copies)

    workers: list[ServiceProcess] = []
    for pool, worker_id in ((each, worker_id) for each in POOLS for worker_id in options.worker_ids(each)):
        shape = options.shape_of(pool)
        own = [next(left) for _ in range(shape.size)]
        niceness = _TOKEN_NICENESS if pool == "token" and not own[0].is_own else 0
        if shape.size == 1 and not options.reshapable:
            workers.append(worker(options, pool, worker_id, env(pool, own[0], niceness)))
            continue
        in_group = [_in_group(options, shape, share) for share in own]
        workers += _group(options, pool, worker_id, [env(pool, share, niceness) for share in in_group])
    spares = [env("mixed", replace(_without_own(share), threads=options.threads or 1)) for share in left]
    return (*workers, *(_device(options, f"device-{number}", each) for number, each in enumerate(spares)))


def _copies_fit(options: MeshOptions, nodes: Sequence[tuple[Node, ...]], machine: LocalHost) -> bool:
    """Whether each node's workers may have a file of packed weights of their own, in the node's memory."""
    used = {of_one[0].number: of_one[0] for of_one in nodes if len(of_one) == 1}
    if not used:
        return False
    files = [file for pattern in _WEIGHT_FILES for file in options.model_folder.glob(pattern)]
    needed = _WIDENED * sum(file.stat().st_size for file in files)
    free = min(*(node.free_bytes for node in used.values()), machine.free_bytes // len(used))
    return needed <= _COPIES_SHARE * free


def _in_group(options: MeshOptions, shape: GroupShape, share: CoreShare) -> CoreShare:
    """Return the share of a process of a group: they wait for one another at every step, so that each has one thread, unless
    the user says otherwise.
    """
    threads = options.threads or (1 if shape.size > 1 else share.threads)
    return replace(_without_own(share), threads=threads)


def _without_own(share: CoreShare) -> CoreShare:
    """Return the share of a device: on a machine that is not divided by node it runs where there is time."""
    return share if share.nodes else replace(share, cores=())


def _group(options: MeshOptions, pool: str, worker_id: str, envs: Sequence[Mapping[str, str]]) -> list[ServiceProcess]:
    """Plan a leader and its devices, by their environments, all of the same niceness."""
    shape = options.shape_of(pool)
    shaped = {"SPOTWISE_STAGES": str(shape.stages), "SPOTWISE_SHARDS": str(shape.shards)}
    if options.reshapable:
        shaped["SPOTWISE_RESHAPABLE"] = "true"
    leader = worker(options, pool, worker_id, {**envs[0], **shaped})
    led = {"SPOTWISE_LEADER_ID": worker_id}
    devices = [
        _device(options, f"{worker_id}-device-{number}", {**env, **led}) for number, env in enumerate(envs[1:], start=1)
    ]
    # Its device lives as long as the process; its worker as long as no re-shape ends it.
    return [replace(leader, member_ids=(f"{worker_id}-device-0",)), *devices]


def _device(options: MeshOptions, device_id: str, env: Mapping[str, str]) -> ServiceProcess:
    return service(options, "worker.groups", device_id, env, StopOrder.WORKER, later_imports=worker_imports(options))


def worker(options: MeshOptions, pool: str, worker_id: str, env: Mapping[str, str]) -> ServiceProcess:
    """Plan a worker's process, or that of its group's leader."""
    module = "prompt_worker" if pool == "prompt" else "token_worker"
    return service(options, module, worker_id, env, StopOrder.WORKER, later_imports=worker_imports(options))


def worker_env(
    options: MeshOptions,
    common: Mapping[str, str],
    pool: str,
    sharing: int,
    share: CoreShare,
    niceness: int = 0,
    *,
    has_copies: bool = False,
) -> dict[str, str]:
    """Return the environment of a process that computes for workers.

    Args:
        sharing: processes that divide the machine's memory.
        has_copies: each node's processes have a file of packed weights of their own.
    """
    env = {
        **common,
        "SPOTWISE_DTYPE": options.dtype,
        "SPOTWISE_WEIGHTS": options.weights,
        "SPOTWISE_DEVICE": options.device,
        "SPOTWISE_THREADS": str(share.threads),
        "OMP_NUM_THREADS": str(share.threads),
        "SPOTWISE_NICENESS": str(niceness),
        "SPOTWISE_KV_CACHE_BYTES": str(options.kv_cache_bytes or "auto"),
        "SPOTWISE_LOCAL_WORKERS": str(sharing),
        "SPOTWISE_POOL": pool,
        **policy_env(options),
    }
    if options.shared_weights is not None:
        is_copy = has_copies and len(share.nodes) == 1
        folder = options.shared_weights / f"node-{share.nodes[0].number}" if is_copy else options.shared_weights
        env["SPOTWISE_SHARED_WEIGHTS"] = str(folder)
    if options.cost_profiles is not None:
        env["SPOTWISE_COST_PROFILES"] = str(options.cost_profiles)
    if share.cores:
        env["SPOTWISE_CORES"] = format_cpus(share.cores)
    if share.is_pinned:
        env["SPOTWISE_PIN_THREADS"] = "true"
    return env


def worker_imports(options: MeshOptions) -> tuple[str, ...]:
    """Return what every worker imports after its settings: torch and transformers with it, and the model's own code."""
    engine = tuple(f"{options.service_modules}{name}" for name in ("worker.serve", "worker.groups.serve"))
    try:
        model_type = json.loads((options.model_folder / "config.json").read_bytes())["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        return engine  # each worker refuses such a folder, and says why
    name = str(model_type).replace("-", "_")
    return (*engine, f"transformers.models.{name}.modeling_{name}")
