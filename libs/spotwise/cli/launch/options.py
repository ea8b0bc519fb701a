"""The checked options of `spotwise up`, with the model already resolved to a folder."""

from __future__ import annotations

import ipaddress
import re
from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from spotwise.cli.errors import OptionError
from spotwise.worker.engine_choices import DEVICE, DTYPES


class EngineKind(StrEnum):
    """The engine of the workers: real or simulated."""

    TORCH = "torch"
    SIMULATED = "simulated"


class SimulatedKv(StrEnum):
    """How simulated workers hand KV over."""

    TIMED = "timed"
    REAL = "real"


class GroupShape(BaseModel):
    """The processes of one worker: P stages of M shards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stages: PositiveInt = 1
    shards: PositiveInt = 1

    @property
    def size(self) -> int:
        """Processes: P x M."""
        return self.stages * self.shards


class FleetOptions(BaseModel):
    """How a mesh gets its devices from a provider.

    Attributes:
        file: the fleet file; `folder`: of the state of local instances.
        profile: costs of the first type: what a simulated device takes, unless the user says otherwise.
        most_devices: devices of this machine at once; they share its memory and cores.
        trace: a spot trace that takes and gives the local spot instances; `compress`: its seconds in one of the mesh's;
            `grace_s`: seconds from a notice to the loss; None: as the trace or the fleet file says.
        budget_per_h: dollars an hour at most; None: no limit.
        on_demand_floor: on-demand instances at least.
        spares: instances beside those that serve; None: the planner's own choice.
        latency_target_s: seconds of a request that are fast enough, 0: as few as can be; None: the planner's own choice.
        max_unready_s: for so long requests wait for a first instance; `max_queue_s`: for one with free capacity; None: as the
            environment says.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Path
    folder: Path
    profile: Path | None = None
    most_devices: PositiveInt = 1
    trace: Path | None = None
    compress: PositiveFloat = 1.0
    grace_s: NonNegativeFloat | None = None
    budget_per_h: PositiveFloat | None = None
    on_demand_floor: NonNegativeInt = 0
    spares: NonNegativeInt | None = None
    latency_target_s: NonNegativeFloat | None = None
    max_unready_s: PositiveFloat | None = None
    max_queue_s: PositiveFloat | None = None


#: The pools of a mesh's workers, in the order in which they start.
POOLS = ("prompt", "token", "mixed")


class MeshOptions(BaseModel):
    """The options of one mesh.

    Attributes:
        prompt_workers, token_workers, mixed_workers: processes of each pool; each phase needs one worker that can do it.
        prompt_shape, token_shape, mixed_shape: processes of each worker of a pool.
        model_name: the model's name in the API.
        shared_weights: folder in which the workers of this machine share one copy of packed weights; None: a copy for each.
        cost_profiles: folder of measured iteration costs; None: each worker measures them when it needs them.
        allow_anonymous: clients of other machines need no key where there is none; else as the environment says.
        api_keys_file: file with keys, as `spotwise keys hash` prints them.
        tls_cert, tls_key: certificate chain and private key of the gateway; None: it speaks plain HTTP.
        nats_url, redis_url: running servers to use; None starts embedded ones.
        keep_store: an embedded store that is restarted within the mesh's life keeps its entries.
        mesh_secret_file: what all its processes share; None: without one, as in plans that start nothing.
        kv_cache_bytes: KV memory of each worker; None: measured once the model is loaded.
        threads: compute threads of each worker; None shares the cores.
        policy: the workers' scheduling policy; None: from their environment, else first come, first served.
        kv_host_bytes: host memory for each worker's swapped KV; None: the worker's own choice, where its policy swaps.
        engine: `torch` computes; `simulated` only takes the time, and answers with words of no meaning.
        profile: costs by which `mlfq` charges service and simulated workers take time; None: a built-in profile.
        speed: how many times as fast as the profile a simulated worker is.
        simulated_kv: how simulated workers hand over: `timed` by the clock alone, `real` with bytes over UCX.
        reshapable: workers are devices, which a re-shape may give other positions.
        schedulers, planners: processes of each, of which one acts and the others stand by.
        further_ports: ports of the gateways beside the one at `port`.
        adapters: adapters of the model, as the setting `SPOTWISE_ADAPTERS`; empty for none.
        model_aliases: further names of model and adapters, as the setting `SPOTWISE_MODEL_ALIASES`; empty for none.
        spare_devices: further devices, which wait for a re-shape.
        fleet: where devices come from, if not from the options above.
        start_timeout_s: time for all services together to become healthy.
        hang_timeout_s: silence after which a process is replaced; 0: never.
        log_bytes: size of a process's log at which it is rotated.
        service_modules: the package before a service's name in `python -m`; tests set their own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    prompt_workers: int = 1
    token_workers: int = 1
    mixed_workers: int = 0
    prompt_shape: GroupShape = GroupShape()
    token_shape: GroupShape = GroupShape()
    mixed_shape: GroupShape = GroupShape()
    model_folder: Path
    model_name: str
    shared_weights: Path | None = None
    cost_profiles: Path | None = None
    dtype: str = "auto"
    device: str = "auto"
    host: str = "127.0.0.1"
    port: int = 8000
    allow_anonymous: bool = False
    api_keys_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    nats_url: str | None = None
    redis_url: str | None = None
    keep_store: bool = False
    mesh_secret_file: Path | None = None
    kv_cache_bytes: PositiveInt | None = None
    threads: PositiveInt | None = None
    policy: str | None = None
    kv_host_bytes: PositiveInt | None = None
    engine: EngineKind = EngineKind.TORCH
    profile: Path | None = None
    speed: PositiveFloat = 1.0
    simulated_kv: SimulatedKv = SimulatedKv.TIMED
    reshapable: bool = False
    spare_devices: NonNegativeInt = 0
    schedulers: PositiveInt = 1
    planners: PositiveInt = 1
    further_ports: tuple[int, ...] = ()
    adapters: str = ""
    model_aliases: str = ""
    fleet: FleetOptions | None = None
    start_timeout_s: PositiveFloat = 180.0
    hang_timeout_s: NonNegativeFloat = 15.0
    log_bytes: PositiveInt = 16 << 20
    service_modules: str = "spotwise."

    @field_validator("dtype")
    @classmethod
    def _dtype_is_one_of_the_engine(cls, dtype: str) -> str:
        if dtype not in DTYPES:
            raise ValueError(f"--dtype {dtype!r} is no dtype; write auto, float32, bfloat16 or float16")
        return dtype

    @field_validator("device")
    @classmethod
    def _device_is_one_of_the_engine(cls, device: str) -> str:
        if not re.fullmatch(DEVICE, device):
            raise ValueError(f"--device {device!r} is no device; write auto, cpu, cuda or cuda:0")
        return device

    @model_validator(mode="after")
    def _both_phases_have_a_worker(self) -> Self:
        if self.fleet is None and self.mixed_workers == 0 and not (self.prompt_workers and self.token_workers):
            raise ValueError(
                "a mesh needs a prompt worker and a token worker, or a mixed worker: --prompt-workers 1 --token-workers 1"
            )
        return self

    @model_validator(mode="after")
    def _adapters_have_workers(self) -> Self:
        if self.adapters and self.engine is EngineKind.SIMULATED:
            raise ValueError("--adapter: simulated workers compute nothing, and serve no adapters; leave one out")
        if self.adapters and (self.reshapable or self.num_devices > self.num_workers):
            raise ValueError(
                "--adapter: workers of several processes, or of --parallel, --fleet and --trace, serve no adapters; name "
                "workers with --prompt-workers, --token-workers or --mixed-workers"
            )
        return self

    @property
    def num_workers(self) -> int:
        """Worker processes of all pools."""
        return self.prompt_workers + self.token_workers + self.mixed_workers

    @property
    def num_devices(self) -> int:
        """Processes that compute, or may: those of all workers, and the spare ones."""
        shapes = (self.prompt_shape, self.token_shape, self.mixed_shape)
        counts = (self.prompt_workers, self.token_workers, self.mixed_workers)
        return self.spare_devices + sum(count * shape.size for count, shape in zip(counts, shapes, strict=True))

    def with_devices(self, devices: int) -> Self:
        """Return these options with so many processes that compute; raises `OptionError` where workers need more."""
        if devices < self.num_devices:
            raise OptionError(f"--devices {devices}: the workers of --parallel are {self.num_devices} processes")
        return self.model_copy(update={"spare_devices": devices - self.num_devices})

    def worker_ids(self, pool: str) -> list[str]:
        """Return the ids of a pool's workers."""
        counts = {"prompt": self.prompt_workers, "token": self.token_workers, "mixed": self.mixed_workers}
        return [f"{pool}-{number}" for number in range(counts[pool])]

    def shape_of(self, pool: str) -> GroupShape:
        """Return the processes of each worker of a pool."""
        shapes = {"prompt": self.prompt_shape, "token": self.token_shape, "mixed": self.mixed_shape}
        return shapes[pool]

    @property
    def url(self) -> str:
        """The first gateway's URL for a client on this machine."""
        return self.urls[0]

    @property
    def ports(self) -> tuple[int, ...]:
        """The port of each gateway."""
        return (self.port, *self.further_ports)

    @property
    def urls(self) -> tuple[str, ...]:
        """The URL of each gateway for a client on this machine."""
        scheme = "http" if self.tls_cert is None else "https"
        return tuple(f"{scheme}://{_reachable_host(self.host)}:{port}" for port in self.ports)


def unnamed_pools(prompt_workers: int | None, token_workers: int | None, mixed_workers: int) -> tuple[int, int]:
    """Return the counts of prompt and token workers; of an unnamed pool 1, or 0 beside mixed workers, which do both phases."""
    unnamed = 0 if mixed_workers else 1
    return (
        unnamed if prompt_workers is None else prompt_workers,
        unnamed if token_workers is None else token_workers,
    )


def parse_size(text: str, option: str) -> int:
    """Bytes of a size like `4GiB` or `2GB` (1 GiB = 1024^3, 1 GB = 1000^3), not 0; raises `OptionError`, naming `option`."""
    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        size = 0
    if size <= 0:
        raise OptionError(f"{option} {text!r} is no size; write for instance 4GiB, 512MiB or 2GB")
    return size


def _reachable_host(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return host if address.version == 4 else f"[{host}]"
