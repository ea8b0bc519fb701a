"""Opens the provider that a fleet file names."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import sys
from collections.abc import AsyncIterator

from spotwise.cloud.ec2_client import Ec2Options
from spotwise.cloud.ec2_instances import Ec2Instances
from spotwise.cloud.instances import InstanceProvider, ProviderRefused
from spotwise.cloud.local_instances import LocalInstances, LocalOptions
from spotwise.cloud.local_processes import execute
from spotwise.cloud.traced_instances import TracedInstances
from spotwise.files.fleet_file import FleetFile, FleetFileError
from spotwise.files.spot_traces import SpotTrace, read_spot_trace
from spotwise.files.tables import TraceError
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.spot_watcher.instance_forks import InstanceForks
from spotwise.spot_watcher.settings import SpotWatcherSettings

#: The watcher's own; its devices have theirs, or none.
_OWN = {"service_id", "grpc_port", "journal"} | (
    SpotWatcherSettings.model_fields.keys() - ServiceSettings.model_fields.keys()
)
WATCHERS_VARIABLES = frozenset(f"SPOTWISE_{name.upper()}" for name in _OWN)


def default_command(devices: int = 1) -> tuple[str, ...]:
    """Return the command of a local instance with so many devices of groups: `{instance_id}`, or `{instance_id}-N` each."""
    device = (sys.executable, "-P", "-m", "spotwise.worker.groups")
    if devices == 1:
        return ("env", "SPOTWISE_SERVICE_ID={instance_id}", *device)
    # The shell passes SIGTERM on, and ends when all of them have.
    started = f'SPOTWISE_SERVICE_ID={{instance_id}}-$n {shlex.join(device)} & devices="$devices $!"'
    numbers = " ".join(map(str, range(devices)))
    return (
        "sh",
        "-c",
        f"trap 'kill $devices' TERM; for n in {numbers}; do {started}; done; wait; wait",
    )


def local_options(settings: SpotWatcherSettings, fleet: FleetFile) -> LocalOptions:
    """Return how local instances are started."""
    assert fleet.local is not None
    given_urls = {"NATS_URL": settings.fleet_nats_url, "REDIS_URL": settings.fleet_redis_url}
    given = tuple(json.loads(settings.fleet_command)) if settings.fleet_command else ()
    return LocalOptions(
        settings.state_folder,
        {each.name: each.command or given or default_command(each.devices) for each in fleet.types},
        fleet.local.limit,
        fleet.notice_s,
        WATCHERS_VARIABLES,
        {f"SPOTWISE_{name}": url for name, url in given_urls.items() if url is not None},
        settings.fleet_supervisor,
    )


class OpenProvider:
    """A provider; its local part, whose options may change; and what forks local instances."""

    def __init__(
        self, provider: InstanceProvider, local: LocalInstances | None = None, forks: InstanceForks | None = None
    ) -> None:
        self.provider = provider
        self._local = local
        self._forks = forks

    def use(self, settings: SpotWatcherSettings, fleet: FleetFile) -> None:
        """Take commands and limits of a changed fleet file; other providers keep theirs until a restart."""
        if self._local is not None and fleet.provider == "local":
            self._local.use(local_options(settings, fleet))

    async def close(self) -> None:
        """Close them; instances go on."""
        await self.provider.close()
        if self._forks is not None:
            self._forks.close()


@contextlib.asynccontextmanager
async def open_provider(settings: SpotWatcherSettings, fleet: FleetFile) -> AsyncIterator[OpenProvider]:
    """Open the provider and close it behind the block; its instances go on.

    Raises:
        MeshError: it cannot be opened, or the trace cannot be read.
    """
    opened = await _open(settings, fleet)
    try:
        yield opened
    finally:
        await opened.close()


async def _open(settings: SpotWatcherSettings, fleet: FleetFile) -> OpenProvider:
    if fleet.aws is not None and fleet.provider == "aws":
        if settings.fleet_trace is not None:
            raise MeshError("SPOTWISE_FLEET_TRACE takes local instances away; unset it for the provider aws")
        try:
            options = Ec2Options(**fleet.aws.model_dump())
            return OpenProvider(await Ec2Instances.connect(settings.fleet_mesh, options))
        except ProviderRefused as error:
            raise MeshError(f"the provider aws cannot be opened: {error}") from error
    if settings.fleet_trace is None:
        return _local(settings, fleet)
    try:
        trace = await asyncio.to_thread(read_spot_trace, settings.fleet_trace)
    except (TraceError, FleetFileError) as error:
        raise MeshError(f"SPOTWISE_FLEET_TRACE: {error}") from error
    return _local(settings, fleet, trace)


def _local(settings: SpotWatcherSettings, fleet: FleetFile, trace: SpotTrace | None = None) -> OpenProvider:
    forks = None
    if settings.fleet_imports and any(not each.command and each.devices == 1 for each in fleet.types):
        settings.state_folder.mkdir(parents=True, exist_ok=True)
        program, *modules = settings.fleet_imports.split(",")
        forks = InstanceForks(program, modules, os.environ, settings.state_folder / "fork-server.log")
    local = LocalInstances(
        settings.fleet_mesh, local_options(settings, fleet), run=execute if forks is None else forks.run
    )
    if trace is None:
        return OpenProvider(local, local, forks)
    grace_s = fleet.notice_s if settings.fleet_grace_s is None else settings.fleet_grace_s
    traced = TracedInstances(
        local,
        trace,
        settings.state_folder,
        settings.fleet_mesh,
        settings.fleet_compress,
        grace_s,
        reaction=settings.fleet_reaction,
    )
    return OpenProvider(traced, local, forks)
