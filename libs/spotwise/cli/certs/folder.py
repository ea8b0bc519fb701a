"""The folder of a mesh's credentials: `ca/`, `servers/nats/`, `servers/redis/`, and `members/NAME/` for each of their users.

A member's folder has its certificate and `mesh.env`, its URLs with its passwords; workers' have the mesh's secret too. A
server's folder has its certificate and a configuration with all users, rewritten whenever one is added.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spotwise.cli.certs.authority import CertificateAuthority, Certified, private_file, private_folder, read_certificate
from spotwise.cli.errors import CommandError
from spotwise.core.access.store_budget import SHIPPED_MAXMEMORY_BYTES
from spotwise.mesh.embedded.configs import broker_config, derived_password, store_acl
from spotwise.mesh.security.plane_tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from spotwise.mesh.security.secrets import write_mesh_secret
from spotwise.wire.permissions import Principal
from spotwise.wire.roles import MeshRole

_NATS, _REDIS = "nats", "redis"
_SECRET_FILE = "mesh.secret"
_ENV_FILE = "mesh.env"


@dataclass(frozen=True, slots=True)
class CredentialsFolder:
    """The folder at `path`; every method raises `CommandError` where it cannot be read or written."""

    path: Path

    def create(self, nats_host: str, redis_host: str, days: int, ca_days: int) -> None:
        """Make the CA, the servers' certificates, and the members of all roles."""
        try:
            for folder in (self.path, self.path / "servers", self.path / "members"):
                private_folder(folder)
            authority = CertificateAuthority.create(self._ca, "spotwise mesh CA", ca_days)
            for server in (_NATS, _REDIS):
                private_file(self._root_path(server), f"{secrets.token_hex(32)}\n".encode())
            write_mesh_secret(self._ca / _SECRET_FILE)
            for server, host in ((_NATS, nats_host), (_REDIS, redis_host)):
                authority.issue(self._server(server), host, (), (host, "localhost", "127.0.0.1"), days)
        except FileExistsError as error:
            raise CommandError(f"{error}; renew its certificates with `spotwise certs renew`") from error
        except OSError as error:
            raise _unwritable(self.path, error) from error
        for role in MeshRole:
            self.issue(Principal(role), (role,), (), days)

    def issue(self, principal: Principal, roles: Sequence[MeshRole], hosts: Sequence[str], days: int) -> Certified:
        """Write a member's certificate and URLs, and let the servers know its user."""
        folder = self._member(principal.name)
        try:
            certified = self._authority().issue(folder, principal.name, roles, hosts, days)
            if MeshRole.WORKER in roles:
                private_file(folder / _SECRET_FILE, (self._ca / _SECRET_FILE).read_bytes())
            private_file(folder / _ENV_FILE, self._env(principal, folder).encode())
            self._configure()
        except OSError as error:
            raise _unwritable(folder, error) from error
        return certified

    def certificates(self) -> dict[Path, Certified]:
        """Return all certificates by folder, the servers' first."""
        folders = [self._server(_NATS), self._server(_REDIS), *sorted((self.path / "members").glob("*"))]
        try:
            return {folder: read_certificate(folder) for folder in folders if (folder / CERTIFICATE_FILE).is_file()}
        except (OSError, ValueError) as error:
            raise CommandError(f"{self.path}: a certificate cannot be read: {error}") from error

    def renew(self, folder: Path, days: int) -> Certified:
        """Write a new key and certificate with the roles and hosts of the old one; passwords stay."""
        old = self.certificates()[folder]
        try:
            roles = tuple(MeshRole(role) for role in old.roles)
            return self._authority().issue(folder, old.name, roles, old.hosts, days)
        except (OSError, ValueError) as error:
            raise _unwritable(folder, error) from error

    def _configure(self) -> None:
        principals = [_principal(folder.name) for folder in sorted((self.path / "members").glob("*"))]
        for server, files in ((_NATS, self._broker_files), (_REDIS, self._store_files)):
            passwords = {each: self._password(server, each) for each in principals}
            for name, content in files(passwords).items():
                private_file(self._server(server) / name, content.encode())

    @staticmethod
    def _broker_files(passwords: dict[Principal, str]) -> dict[str, str]:
        tls = (
            f'tls: {{ cert_file: "{CERTIFICATE_FILE}", key_file: "{KEY_FILE}", ca_file: "{CA_FILE}", verify: true }}\n'
        )
        return {"nats-server.conf": f"port: 4222\n{tls}{broker_config(passwords)}"}

    @staticmethod
    def _store_files(passwords: dict[Principal, str]) -> dict[str, str]:
        lines = ("port 0", "tls-port 6379", f"tls-cert-file {CERTIFICATE_FILE}", f"tls-key-file {KEY_FILE}")
        memory = f"maxmemory {SHIPPED_MAXMEMORY_BYTES}"
        more = (f"tls-ca-cert-file {CA_FILE}", "tls-auth-clients yes", "aclfile users.acl", memory)
        return {
            "redis.conf": "\n".join((*lines, *more)) + "\n",
            "users.acl": store_acl(passwords, separates_reads=True),
        }

    def _env(self, principal: Principal, folder: Path) -> str:
        certified = self.certificates()
        nats, redis = (certified[self._server(each)].name for each in (_NATS, _REDIS))
        user = principal.name
        lines = [
            f"SPOTWISE_NATS_URL=tls://{user}:{self._password(_NATS, principal)}@{nats}:4222",
            f"SPOTWISE_REDIS_URL=rediss://{user}:{self._password(_REDIS, principal)}@{redis}:6379/0",
            f"SPOTWISE_TLS_DIR={folder.absolute()}",
        ]
        if (folder / _SECRET_FILE).is_file():
            lines.append(f"SPOTWISE_MESH_SECRET_FILE={folder.absolute() / _SECRET_FILE}")
        return "\n".join(lines) + "\n"

    def _password(self, server: str, principal: Principal) -> str:
        return derived_password(self._root_path(server).read_text().strip(), principal)

    def _authority(self) -> CertificateAuthority:
        try:
            return CertificateAuthority.read(self._ca)
        except (OSError, ValueError) as error:
            raise CommandError(f"{self._ca} has no usable CA: {error}; make one with `spotwise certs init`") from error

    @property
    def _ca(self) -> Path:
        return self.path / "ca"

    def _root_path(self, server: str) -> Path:
        return self._ca / f"{server}-passwords.secret"

    def _server(self, server: str) -> Path:
        return self.path / "servers" / server

    def _member(self, name: str) -> Path:
        return self.path / "members" / name


def _principal(name: str) -> Principal:
    role, _, member_id = name.partition(".")
    return Principal(MeshRole(role), member_id or None)


def _unwritable(path: Path, error: Exception) -> CommandError:
    return CommandError(f"{path} cannot be written: {error}")
