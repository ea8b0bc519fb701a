"""Broker and store of a mesh, and what each of its processes logs in with.

Embedded servers have a user for each service, one for all workers, since their ids are chosen while the mesh runs, and one for
commands. Servers that the user named have their own users: every process gets the given URL.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from spotwise.cli.launch.service_process import ServiceProcess
from spotwise.mesh.embedded.configs import derived_password
from spotwise.wire.permissions import ADMIN, Principal
from spotwise.wire.roles import MeshRole

OPERATOR = Principal(MeshRole.OPERATOR)
WORKER = Principal(MeshRole.WORKER)

#: By the last part of a service's module; all other modules are workers.
_ROLES: Mapping[str, MeshRole] = {
    "gateway": MeshRole.GATEWAY,
    "cluster_scheduler": MeshRole.SCHEDULER,
    "migration_planner": MeshRole.PLANNER,
    "spot_watcher": MeshRole.WATCHER,
}


class ServerAccess(BaseModel):
    """One server: its URL and, where it is embedded, the secret from which its users' passwords are derived."""

    model_config = ConfigDict(frozen=True)

    url: str
    root: str | None = None

    @classmethod
    def embedded(cls, url: str) -> Self:
        """Make the secret of a new embedded server."""
        return cls(url=url, root=secrets.token_hex(32))

    def url_of(self, principal: Principal) -> str:
        """Return the URL with a principal's user name and password, or the given one."""
        if self.root is None:
            return self.url
        user = f"{principal.name}:{derived_password(self.root, principal)}"
        return urlsplit(self.url)._replace(netloc=f"{user}@{urlsplit(self.url).netloc}").geturl()

    def passwords(self, principals: Sequence[Principal]) -> dict[Principal, str]:
        """Return the passwords of an embedded server's users."""
        assert self.root is not None
        return {principal: derived_password(self.root, principal) for principal in principals}


class MeshServers(BaseModel):
    """Broker and store."""

    model_config = ConfigDict(frozen=True)

    broker: ServerAccess
    store: ServerAccess

    def urls(self, principal: Principal) -> tuple[str, str]:
        """Return broker's and store's URL for a principal."""
        return self.broker.url_of(principal), self.store.url_of(principal)

    def logged_in(self, service: ServiceProcess) -> ServiceProcess:
        """Return a service with its own user in its environment; a watcher has its local instances' user, too."""
        principal = principal_of(service)
        env = {**service.env, **self._env("SPOTWISE_", principal)}
        if principal.role is MeshRole.WATCHER:
            env |= self._env("SPOTWISE_FLEET_", WORKER)
        return replace(service, env=env)

    def _env(self, prefix: str, principal: Principal) -> dict[str, str]:
        nats_url, redis_url = self.urls(principal)
        return {f"{prefix}NATS_URL": nats_url, f"{prefix}REDIS_URL": redis_url}


def principal_of(service: ServiceProcess) -> Principal:
    """Return the user of a process."""
    role = _ROLES.get(service.argv[-1].rpartition(".")[2])
    return WORKER if role is None else Principal(role, service.service_id)


def principals_of(services: Sequence[ServiceProcess]) -> tuple[Principal, ...]:
    """Return all users of a mesh: of its services, of workers that may join, and of commands."""
    return tuple(dict.fromkeys([*map(principal_of, services), WORKER, OPERATOR, ADMIN]))
