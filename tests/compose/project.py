"""docker-compose.yml as a project that a test runs: a name of its own, a free port, and everything removed at the end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SERVICES = frozenset(
    {"gateway", "cluster-scheduler", "prompt-worker", "token-worker", "migration-planner", "spot-watcher"}
)


class ContainerError(AssertionError):
    """A command failed, or a container did not become what was waited for."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container of the project, as the engine describes it.

    Attributes:
        id: of the container.
        service: its name in docker-compose.yml.
        state: `State` of `docker inspect`.
    """

    id: str
    service: str
    state: dict[str, Any]

    @property
    def healthy(self) -> bool:
        """Whether the container's health check succeeds."""
        return bool(self.state["Running"]) and self.state.get("Health", {}).get("Status") == "healthy"


@dataclass(slots=True)
class Project:
    """Commands on the mesh in containers.

    Attributes:
        name: of the project; prefixes its containers, network and volume.
        env: what docker-compose.yml is filled with.
    """

    name: str = "spotwise-test"
    env: dict[str, str] = field(default_factory=lambda: {"SPOTWISE_PUBLISH": "127.0.0.1:"})

    def compose(self, *arguments: str, timeout_s: float = 300) -> str:
        """Run a compose command and return what it prints.

        Raises:
            ContainerError: it failed.
        """
        return self._run([*_compose_command(), "--project-name", self.name, *arguments], timeout_s)

    def docker(self, *arguments: str, timeout_s: float = 60) -> str:
        """Run a docker command and return what it prints.

        Raises:
            ContainerError: it failed.
        """
        return self._run(["docker", *arguments], timeout_s)

    def containers(self, service: str | None = None) -> list[Container]:
        """The project's containers, exited ones included."""
        of_project = f"label=com.docker.compose.project={self.name}"
        ids = self.docker("ps", "--all", "--quiet", "--no-trunc", "--filter", of_project).split()
        described = json.loads(self.docker("inspect", *ids)) if ids else []
        found = [
            Container(each["Id"], each["Config"]["Labels"]["com.docker.compose.service"], each["State"])
            for each in described
        ]
        return [container for container in found if service in (None, container.service)]

    def running(self, service: str) -> list[Container]:
        """The containers of a service that are healthy."""
        return [container for container in self.containers(service) if container.healthy]

    def wait_healthy(self, service: str, count: int = 1) -> list[Container]:
        """Wait until just `count` containers of a service are healthy.

        Raises:
            ContainerError: they are not, after two minutes; the message ends with their log.
        """
        self.wait_for(lambda: len(self.running(service)) == count, f"{count} healthy {service}", service)
        return self.running(service)

    def wait_for(self, condition: Callable[[], bool], what: str, service: str, timeout_s: float = 120) -> None:
        """Wait for a condition.

        Raises:
            ContainerError: it does not hold in time; the message ends with the service's log.
        """
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline_s:
                log = self.compose("logs", "--no-color", "--tail", "40", service)
                raise ContainerError(f"not within {timeout_s:g} s: {what}; the log of {service} ends:\n{log}")
            time.sleep(0.5)

    def address_of_api(self) -> str:
        """Host and port at which the gateway's API is published on this machine."""
        return self.compose("port", "gateway", "8000").strip()

    def explain(self, request_id: str) -> list[dict[str, Any]]:
        """A request's ledger, printed by the command line within the gateway's container."""
        command = ("python", "-P", "-m", "spotwise.cli", "explain", request_id, "--json")
        gateway = self.running("gateway")[0].id
        told: list[dict[str, Any]] = json.loads(
            self.docker("exec", gateway, *command, "--redis-url", "redis://redis:6379/0")
        )
        return told

    def _run(self, command: list[str], timeout_s: float) -> str:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise ContainerError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout


def engine_answers() -> bool:
    """Whether a Docker engine and a compose command are here."""
    if shutil.which("docker") is None:
        return False
    answers = subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0
    return answers and bool(_compose_command())


def _compose_command() -> list[str]:
    given = os.environ.get("COMPOSE", "").split()
    if given:
        return given
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else []
