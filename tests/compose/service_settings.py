"""The settings of all services, as the rows that docs/deploy.md has."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic.fields import FieldInfo

from spotwise.cluster_scheduler.settings import SchedulerSettings
from spotwise.gateway.settings import GatewaySettings
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.migration_planner.settings import PlannerSettings
from spotwise.spot_watcher.settings import SpotWatcherSettings
from spotwise.worker.settings import WorkerSettings
from spotwise.worker.simulated.groups.serve import SimulatedDeviceSettings
from spotwise.worker.simulated.settings import SimulatedWorkerSettings

#: By a service's name in docker-compose.yml.
SETTINGS: dict[str, type[ServiceSettings]] = {
    "gateway": GatewaySettings,
    "cluster-scheduler": SchedulerSettings,
    "prompt-worker": WorkerSettings,
    "token-worker": WorkerSettings,
    "migration-planner": PlannerSettings,
    "spot-watcher": SpotWatcherSettings,
}
_OWNERS: dict[str, type[ServiceSettings]] = {
    "workers": WorkerSettings,
    "simulated workers": SimulatedWorkerSettings,
    "simulated devices": SimulatedDeviceSettings,
    "gateway": GatewaySettings,
    "scheduler": SchedulerSettings,
    "watcher": SpotWatcherSettings,
    "planner": PlannerSettings,
}
#: Whose settings a kind of service has besides.
_INHERITED: dict[type[ServiceSettings], type[ServiceSettings]] = {
    SimulatedWorkerSettings: WorkerSettings,
    SimulatedDeviceSettings: SimulatedWorkerSettings,
}


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting as a row of the table.

    Attributes:
        variable: `SPOTWISE_...`.
        owners: the services that have it.
        default: in back quotes; empty where unset has a meaning of its own.
        description: of the field.
    """

    variable: str
    owners: str
    default: str
    description: str

    def __str__(self) -> str:
        return f"| `{self.variable}` | {self.owners} |{f' {self.default} ' if self.default else ' '}|"


def setting_rows() -> list[SettingRow]:
    """Every setting of every service, those of all services first."""
    rows = [_row(name, "all", info) for name, info in ServiceSettings.model_fields.items()]
    own = [name for settings in _OWNERS.values() for name in settings.model_fields]
    for name in dict.fromkeys(own):
        if name in ServiceSettings.model_fields:
            continue
        owners = [owner for owner, settings in _OWNERS.items() if name in _own_fields(settings)]
        rows.append(_row(name, ", ".join(owners), _OWNERS[owners[0]].model_fields[name]))
    return rows


def _own_fields(settings: type[ServiceSettings]) -> set[str]:
    """Return the fields of a service that it does not have from another kind of it."""
    inherited = _INHERITED.get(settings)
    return set(settings.model_fields) - set(() if inherited is None else inherited.model_fields)


def _row(name: str, owners: str, info: FieldInfo) -> SettingRow:
    unset = info.default is None or info.default == "" or info.default_factory is not None
    default = "required" if info.is_required() else "" if unset else f"`{info.default}`"
    return SettingRow(f"SPOTWISE_{name.upper()}", owners, default, info.description or "")
