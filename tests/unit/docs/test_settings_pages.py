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
from tests.unit.docs.docs_pages import DEPLOY, PAGES, ROOT, page_name, quoted, require_rows, section, subsections, table

OWNERS: dict[str, type[BaseSettings]] = {
    "all services": ServiceSettings,
    "workers": WorkerSettings,
    "simulated workers": SimulatedWorkerSettings,
    "simulated devices": SimulatedDeviceSettings,
    "gateways": GatewaySettings,
    "schedulers": SchedulerSettings,
    "watchers": SpotWatcherSettings,
    "planners": PlannerSettings,
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


def rows() -> list[tuple[str, str, str, str]]:
    """Variable, owner, default and meaning of each row of the tables, once for each owner that a heading names."""
    tables = subsections(section(DEPLOY.read_text(), "Settings of the services"))
    return [
        (quoted(variable)[0], owner, default, meaning)
        for heading, text in tables.items()
        for owner in heading.removeprefix("Of ").split(" and ")
        for variable, default, meaning in table(text)
    ]


def test_the_tables_have_every_setting_with_its_default() -> None:
    """They have each service's own settings and the common ones, each once, and no others."""
    shown: dict[str, dict[str, str]] = {owner: {} for owner in OWNERS}
    for variable, owner, default, meaning in rows():
        assert variable not in shown[owner]
        shown[owner][variable] = default
        assert meaning
    for owner, settings in OWNERS.items():
        own = set(settings.model_fields) - set(INHERITED.get(owner, ServiceSettings).model_fields)
        own |= set(settings.model_fields) if owner == "all services" else set()
        where = f"docs/deploy.md, Settings of the services, {owner}"
        require_rows(set(shown[owner]), {f"SPOTWISE_{field.upper()}" for field in own}, where)
        assert shown[owner] == {f"SPOTWISE_{field.upper()}": shown_default(settings, field) for field in own}


def test_the_tables_describe_each_setting_as_the_code_does() -> None:
    """They have the description of each field that has one, with possible mark-up."""
    for variable, owner, _, meaning in rows():
        said = OWNERS[owner].model_fields[variable.removeprefix("SPOTWISE_").lower()].description
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
