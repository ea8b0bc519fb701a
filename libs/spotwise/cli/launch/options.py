"""The options of one mesh: those that were given, checked, and what follows from them, with the model resolved to a folder."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from spotwise.cli.errors import OptionError
from spotwise.cli.launch.given_options import EngineKind, FleetChoice, LaunchOptions, PoolSizes


class GroupShape(BaseModel):
    """The processes of one worker: P stages of M shards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stages: PositiveInt = 1
    shards: PositiveInt = 1

    @property
    def size(self) -> int:
        """Processes: P x M."""
        return self.stages * self.shards


#: The pools of a mesh's workers, in the order in which they start.
POOLS = ("prompt", "token", "mixed")


class WorkerPools(PoolSizes):
    """The workers of each pool, and the processes of each of them."""

    prompt_shape: GroupShape = GroupShape()
    token_shape: GroupShape = GroupShape()
    mixed_shape: GroupShape = GroupShape()

    @property
    def num_workers(self) -> int:
        """Worker processes of all pools."""
        return self.prompt_workers + self.token_workers + self.mixed_workers

    def worker_ids(self, pool: str) -> list[str]:
        """Return the ids of a pool's workers."""
        counts = {"prompt": self.prompt_workers, "token": self.token_workers, "mixed": self.mixed_workers}
        return [f"{pool}-{number}" for number in range(counts[pool])]

    def shape_of(self, pool: str) -> GroupShape:
        """Return the processes of each worker of a pool."""
        shapes = {"prompt": self.prompt_shape, "token": self.token_shape, "mixed": self.mixed_shape}
        return shapes[pool]


class FleetOptions(FleetChoice):
    """How a mesh gets its devices from a provider.

    Attributes:
        folder: where the state of local instances is kept.
        profile: costs of the first type: what a simulated device takes, unless the user says otherwise.
        most_devices: devices of this machine at once; they share its memory and cores.
        max_unready_s: for so long requests wait for a first instance; `max_queue_s`: for one with free capacity; None: as the
            environment says.
    """

    file: Path
    folder: Path
    profile: Path | None = None
    most_devices: PositiveInt = 1
    max_unready_s: PositiveFloat | None = None
    max_queue_s: PositiveFloat | None = None


class MeshOptions(LaunchOptions, WorkerPools):
    """The options of one mesh.

    Attributes:
        model_name: the model's name in the API.
        shared_weights: folder in which the workers of this machine share one copy of packed weights; None: a copy for each.
        cost_profiles: folder of measured iteration costs; None: each worker measures them when it needs them.
        mesh_secret_file: what all its processes share; None: without one, as in plans that start nothing.
        reshapable: workers are devices, which a re-shape may give other positions.
        spare_devices: further devices, which wait for a re-shape.
        further_ports: ports of the gateways beside the one at `port`.
        adapters: adapters of the model, as the setting `SPOTWISE_ADAPTERS`; empty for none.
        model_aliases: further names of model and adapters, as the setting `SPOTWISE_MODEL_ALIASES`; empty for none.
        fleet: where devices come from, if not from the options above.
        service_modules: the package before a service's name in `python -m`; tests set their own.
    """

    model_folder: Path
    model_name: str
    shared_weights: Path | None = None
    cost_profiles: Path | None = None
    mesh_secret_file: Path | None = None
    reshapable: bool = False
    spare_devices: NonNegativeInt = 0
    further_ports: tuple[int, ...] = ()
    adapters: str = ""
    model_aliases: str = ""
    fleet: FleetOptions | None = None
    service_modules: str = "spotwise."

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


def _reachable_host(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return host if address.version == 4 else f"[{host}]"
