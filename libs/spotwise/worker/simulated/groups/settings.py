"""Settings of a process of simulated devices, in addition to every simulated worker's."""

from __future__ import annotations

from pydantic import Field

from spotwise.worker.simulated.settings import SimulatedWorkerSettings

_IDS = r"^([A-Za-z0-9_-]+(,[A-Za-z0-9_-]+)*)?$"


class SimulatedDeviceSettings(SimulatedWorkerSettings):
    """The devices of one process: those of whole groups of P x M, and spare ones."""

    groups: str = Field(
        "",
        pattern=_IDS,
        description="ids of workers, separated by commas, that are groups of simulated devices of this process from its start",
    )
    spares: str = Field(
        "", pattern=_IDS, description="ids of further simulated devices of this process, which wait for a re-shape"
    )

    @property
    def first_leaders(self) -> dict[str, str]:
        """The worker whose group each device is in from the start, by device; the empty id for a spare one."""
        workers = [worker_id for worker_id in self.groups.split(",") if worker_id]
        led = {device_id: worker_id for worker_id in workers for device_id in self.devices_of(worker_id)}
        return led | dict.fromkeys(filter(None, self.spares.split(",")), "")

    def devices_of(self, worker_id: str) -> tuple[str, ...]:
        """Return the devices of a worker from the start, by position; the first leads it."""
        return tuple(f"{worker_id}-device-{number}" for number in range(self.group_size))
