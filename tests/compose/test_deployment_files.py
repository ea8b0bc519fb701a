"""docker-compose.yml and docs/deploy.md against the settings of the services; needs no Docker engine."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.compose.project import ROOT, SERVICES
from tests.compose.service_settings import SETTINGS, setting_rows

COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text()
DOCS = (ROOT / "docs" / "deploy.md").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)


def test_documentation_lists_every_setting_with_its_default() -> None:
    """Each setting has a row with the code's default, and no row is left of a removed setting."""
    assert [str(row) for row in setting_rows() if str(row) not in DOCS] == []
    documented = set(re.findall(r"^\| `(SPOTWISE_\w+)` \| [a-z, ]+ \|", DOCS, re.MULTILINE))
    assert documented == {row.variable for row in setting_rows()}


def test_documentation_lists_every_variable_of_the_compose_file() -> None:
    """Each `${NAME:-default}` of the compose file has a row in the documentation."""
    variables = set(re.findall(r"\$\{(\w+):-([^}]*)\}", COMPOSE_TEXT))
    assert len(variables) > 10
    for name, default in variables:
        assert f"| `{name}` | {f'`{default}` ' if default else ''}|" in DOCS, name


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_compose_sets_only_what_its_service_reads(service: str) -> None:
    """Every variable that a service is given is one of its settings, and every setting it requires is given."""
    given = {name for name in COMPOSE["services"][service]["environment"] if name.startswith("SPOTWISE_")}
    fields = {f"SPOTWISE_{name.upper()}": info for name, info in SETTINGS[service].model_fields.items()}
    assert given <= set(fields)
    assert {name for name, info in fields.items() if info.is_required()} <= given


@pytest.mark.parametrize("service", ["prompt-worker", "token-worker"])
def test_a_stopped_worker_has_time_to_drain_itself(service: str) -> None:
    """Docker ends it by force some seconds after its own deadline."""
    worker = COMPOSE["services"][service]
    forced_s = float(worker["stop_grace_period"].removesuffix("s"))
    assert 0 < float(worker["environment"]["SPOTWISE_STOP_GRACE_S"]) <= forced_s - 3


def test_worker_images_carry_kernels_that_were_compiled_in_their_build() -> None:
    """Kernels are compiled for every processor kind beside the sources, and the host's libraries are not in the context."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    folder = "spotwise/engine/native/_build"
    assert f"libs/{folder}" in (ROOT / ".dockerignore").read_text().splitlines()
    assert "-m spotwise.engine.native.build --all\n" in dockerfile
    worker = dockerfile.partition("FROM runtime AS worker\n")[2].partition("\nFROM ")[0]
    assert f"COPY --from=kernels /opt/spotwise/{folder} /opt/spotwise/{folder}" in worker


def test_every_service_is_built_for_itself() -> None:
    """A service's image is built with SERVICE naming its package, and the Dockerfile has a stage of that name."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    assert set(COMPOSE["services"]) == SERVICES | {"nats", "redis", "model"}
    for service in SERVICES:
        package = COMPOSE["services"][service]["build"]["args"]["SERVICE"]
        assert (ROOT / "services" / "spotwise" / package / "__main__.py").is_file()
        assert f" AS {package}\n" in dockerfile
