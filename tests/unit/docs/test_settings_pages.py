"""The pages' settings are the code's settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from spotwise.cluster_scheduler.settings import SchedulerSettings
from spotwise.gateway.settings import GatewaySettings
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.migration_planner.settings import PlannerSettings
from spotwise.spot_watcher.settings import SpotWatcherSettings
from spotwise.worker.settings import WorkerSettings
from spotwise.worker.simulated.groups.serve import SimulatedDeviceSettings
from spotwise.worker.simulated.settings import SimulatedWorkerSettings
from tests.unit.docs.docs_pages import DEPLOY, PAGES, ROOT, page_name, quoted, require_rows, section, table

OWNERS: dict[str, type[BaseSettings]] = {
    "all": ServiceSettings,
    "workers": WorkerSettings,
    "simulated workers": SimulatedWorkerSettings,
    "simulated devices": SimulatedDeviceSettings,
    "gateway": GatewaySettings,
    "scheduler": SchedulerSettings,
    "watcher": SpotWatcherSettings,
    "planner": PlannerSettings,
}


#: Whose settings an owner has besides, where not just those of all.
INHERITED: dict[str, type[BaseSettings]] = {
    "simulated workers": WorkerSettings,
    "simulated devices": SimulatedWorkerSettings,
}


def shown_default(settings: type[BaseSettings], field: str) -> str:
    """A default as the table shows it."""
    info = settings.model_fields[field]
    if info.is_required():
        return "required"
    default = "" if info.default is PydanticUndefined else info.default
    return "" if default in (None, "") else f"`{default}`"


def test_the_table_has_every_setting_with_its_default() -> None:
    """The table has each service's own settings and the common ones, and no others."""
    shown: dict[str, dict[str, str]] = {owner: {} for owner in OWNERS}
    for variable, owners, default, meaning in table(section(DEPLOY.read_text(), "Settings of the services")):
        for owner in owners.split(", "):
            shown[owner][quoted(variable)[0]] = default
        assert meaning
    for owner, settings in OWNERS.items():
        own = set(settings.model_fields) - set(INHERITED.get(owner, ServiceSettings).model_fields)
        own |= set(settings.model_fields) if owner == "all" else set()
        where = f"docs/deploy.md, Settings of the services, {owner}"
        require_rows(set(shown[owner]), {f"SPOTWISE_{field.upper()}" for field in own}, where)
        assert shown[owner] == {f"SPOTWISE_{field.upper()}": shown_default(settings, field) for field in own}


def test_the_table_describes_each_setting_as_the_code_does() -> None:
    """The table has the description of each field that has one, with possible mark-up."""
    for variable, owners, _, meaning in table(section(DEPLOY.read_text(), "Settings of the services")):
        field = quoted(variable)[0].removeprefix("SPOTWISE_").lower()
        for owner in owners.split(", "):
            said = OWNERS[owner].model_fields[field].description
            assert said is None or meaning.replace("`", "") == said, f"docs/deploy.md, {variable}: write {said!r}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_variables_exist(page: Path) -> None:
    """Every `SPOTWISE_*` on a page is a setting, or is read by the command line, docker-compose.yml, or the tests."""
    known = {f"SPOTWISE_{field.upper()}" for settings in OWNERS.values() for field in settings.model_fields}
    readers = [
        *(ROOT / "benchmarks").rglob("*.py"),
        *(ROOT / "studies").rglob("*.py"),
        *(ROOT / "libs" / "spotwise" / "cli").rglob("*.py"),
        ROOT / "libs" / "spotwise" / "simulator" / "compiled" / "loading.py",
        ROOT / "docker-compose.yml",
        ROOT / "tests" / "example_budget.py",
    ]
    for reader in readers:
        known |= set(re.findall(r"SPOTWISE_[A-Z_]*[A-Z]", reader.read_text()))
    assert set(re.findall(r"SPOTWISE_[A-Z_]*[A-Z]", page.read_text())) <= known
