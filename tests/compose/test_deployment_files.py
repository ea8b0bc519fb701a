"""docker-compose.yml and docs/deploy.md against the settings of the services; needs no Docker engine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import filelock
import pytest
import yaml  # type: ignore[import-untyped]

from spotwise.cluster_scheduler.settings import SchedulerSettings
from spotwise.gateway.settings import GatewaySettings
from spotwise.mesh.process.server_urls import SentinelUrl
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.migration_planner.settings import PlannerSettings
from spotwise.spot_watcher.settings import SpotWatcherSettings
from spotwise.worker.settings import WorkerSettings
from tests.compose.project import ROOT, SERVICES
from tests.unit.docs.docs_pages import quoted, section, table

COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text()
DOCS = (ROOT / "docs" / "deploy.md").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
HA_SERVERS = {"nats-1", "nats-2", "redis-replica", "sentinel", "sentinel-1", "sentinel-2", "load-balancer"}
HA_TEXT = (ROOT / "deploy" / "ha.env").read_text()
#: By a service's name in docker-compose.yml.
SETTINGS: dict[str, type[ServiceSettings]] = {
    "gateway": GatewaySettings,
    "cluster-scheduler": SchedulerSettings,
    "prompt-worker": WorkerSettings,
    "token-worker": WorkerSettings,
    "migration-planner": PlannerSettings,
    "spot-watcher": SpotWatcherSettings,
}
HA = dict(line.split("=", 1) for line in HA_TEXT.splitlines() if line and not line.startswith("#"))


def test_documentation_lists_every_variable_of_the_compose_file() -> None:
    """Each `${NAME:-default}` has a row; those with a setting's own default are named above the table, which has no others."""
    variables = set(re.findall(r"\$\{(\w+):-([^}]*)\}", COMPOSE_TEXT))
    assert len(variables) > 10
    text = section(DOCS, "What `docker-compose.yml` takes from the environment or from `.env`")
    above = text.partition("\n| ---")[0]
    rows = {(quoted(name)[0], default.strip("`")) for name, default, _ in table(text)}
    defaults = {
        f"SPOTWISE_{name.upper()}": info for each in SETTINGS.values() for name, info in each.model_fields.items()
    }
    named = {name: defaults[name].default for name in re.findall(r"`(SPOTWISE_\w+)`", above)}
    assert rows | {(name, "" if default is None else str(default)) for name, default in named.items()} == variables
    assert not named.keys() & dict(rows).keys()


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_compose_sets_only_what_its_service_reads(service: str) -> None:
    """Every variable that a service is given is one of its settings, and every setting it requires is given."""
    given = {name for name in COMPOSE["services"][service]["environment"] if name.startswith("SPOTWISE_")}
    fields = {f"SPOTWISE_{name.upper()}": info for name, info in SETTINGS[service].model_fields.items()}
    assert given <= set(fields)
    assert {name for name, info in fields.items() if info.is_required()} <= given


@pytest.mark.parametrize(
    ("service", "grace"),
    [
        ("prompt-worker", "SPOTWISE_STOP_GRACE_S"),
        ("token-worker", "SPOTWISE_STOP_GRACE_S"),
        ("gateway", "SPOTWISE_ANSWER_GRACE_S"),
    ],
)
def test_what_is_stopped_has_time_to_end_its_work(service: str, grace: str) -> None:
    """Docker ends it by force some seconds after its own deadline."""
    member = COMPOSE["services"][service]
    forced_s = float(member["stop_grace_period"].removesuffix("s"))
    assert 0 < float(member["environment"][grace]) <= forced_s - 3


def test_worker_images_carry_kernels_that_were_compiled_in_their_build() -> None:
    """Kernels are compiled for every processor kind beside the sources, and the host's libraries are not in the context."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    folder = "spotwise/engine/native/_build"
    assert f"libs/{folder}" in (ROOT / ".dockerignore").read_text().splitlines()
    assert "-m spotwise.engine.native.build --all\n" in dockerfile
    worker = dockerfile.partition("FROM runtime AS worker\n")[2].partition("\nFROM ")[0]
    assert f"COPY --from=kernels /opt/spotwise/{folder} /opt/spotwise/{folder}" in worker


def test_the_stage_that_compiles_the_kernels_has_what_their_build_imports(tmp_path: Path) -> None:
    """Nothing else of spotwise is copied there before they are compiled."""
    stage = (ROOT / "deploy" / "Dockerfile").read_text().partition(" AS kernels\n")[2].partition("\nFROM ")[0]
    for source, target in re.findall(r"^COPY (\S+) /opt/spotwise/(\S+)$", stage, re.MULTILINE):
        copied = tmp_path / target
        copied.parent.mkdir(parents=True, exist_ok=True)
        _ = shutil.copytree(ROOT / source, copied) if (ROOT / source).is_dir() else shutil.copy(ROOT / source, copied)
    paths = [str(tmp_path), str(Path(filelock.__file__).parents[1])]
    code = f"import sys; sys.path += {paths!r}; import spotwise.engine.native.build"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("service", sorted(COMPOSE["services"]))
def test_no_container_has_more_rights_than_it_needs(service: str) -> None:
    """No capabilities, none to be had, bounded memory and processes, no root; only the model's download writes its root."""
    container = COMPOSE["services"][service]
    assert container["cap_drop"] == ["ALL"]
    assert container["security_opt"] == ["no-new-privileges:true"]
    assert container["pids_limit"] <= 1024
    assert re.fullmatch(r"\$\{SPOTWISE_\w+_MEMORY:-\d+g\}", container["mem_limit"])
    if service != "model":
        assert container["read_only"] is True
        assert container["tmpfs"] == ["/tmp"]
    if "build" not in container:
        assert container["user"] in ("redis", "65534:65534")
    else:
        assert re.search(
            r"^FROM \$\{SERVICE\}\n(?:.*\n)*USER spotwise$", (ROOT / "deploy" / "Dockerfile").read_text(), re.M
        )


def test_only_the_gateway_and_its_balancer_can_be_reached_from_outside() -> None:
    """Brokers, stores and members are on a network without a way out; no container but these two publishes a port."""
    assert COMPOSE["networks"]["mesh"] == {"internal": True}
    by_network = {
        network: {name for name, service in COMPOSE["services"].items() if network in service["networks"]}
        for network in COMPOSE["networks"]
    }
    assert by_network["front"] == {"gateway", "load-balancer"}
    assert by_network["fetch"] == {"model"}
    assert by_network["mesh"] == set(COMPOSE["services"]) - {"load-balancer", "model"}
    assert {name for name, service in COMPOSE["services"].items() if "ports" in service} == by_network["front"]


def test_what_the_store_keeps_survives_its_restart() -> None:
    """Primary and replica write an append-only file, each into a volume of its own."""
    volumes = set()
    for service in ("redis", "redis-replica"):
        command = " ".join(COMPOSE["services"][service]["command"])
        assert "--appendonly yes --appendfsync everysec" in command
        volumes.update(COMPOSE["services"][service]["volumes"])
    assert len(volumes) == 2


def test_the_ha_profile_names_servers_that_it_starts() -> None:
    """Every host of its URLs and routes is a service; without the profile none of its servers starts."""
    assert HA["COMPOSE_PROFILES"] == "ha"
    assert all(COMPOSE["services"][name]["profiles"] == ["ha"] for name in HA_SERVERS)
    for name in ("SPOTWISE_NATS_URL", "SPOTWISE_NATS_CLUSTER"):
        assert set(re.findall(r"//(nats[\w-]*):", HA[name])) == {"nats", "nats-1", "nats-2"}
    sentinels = SentinelUrl(HA["SPOTWISE_REDIS_URL"])
    script = (ROOT / "deploy" / "sentinel.sh").read_text()
    assert f"sentinel monitor {sentinels.primary_name} redis 6379 2\n" in script
    assert [host for host, _port in sentinels.sentinels] == ["sentinel", "sentinel-1", "sentinel-2"]
    for host, port in sentinels.sentinels:
        assert COMPOSE["services"][host]["command"] == ["sh", "/opt/sentinel.sh", host]
        assert f"port {port}\n" in script
    assert " gateway:8000\n" in (ROOT / "deploy" / "haproxy.cfg").read_text()
    assert HA.keys() - {"COMPOSE_PROFILES"} <= set(re.findall(r"\$\{(\w+):-", COMPOSE_TEXT))


def test_every_service_is_built_for_itself() -> None:
    """A service's image is built with SERVICE naming its package, and the Dockerfile has a stage of that name."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    assert set(COMPOSE["services"]) == SERVICES | {"nats", "redis", "model"} | HA_SERVERS
    for service in SERVICES:
        package = COMPOSE["services"][service]["build"]["args"]["SERVICE"]
        assert (ROOT / "services" / "spotwise" / package / "__main__.py").is_file()
        assert f" AS {package}\n" in dockerfile
