"""TLS of the planes between hosts: a process proves with a certificate of the mesh's CA which role it has, and checks that its
peer has one.

A certificate names its roles in URIs, `spotwise://mesh/ROLE`, and the names under which clients check it: of broker and store
their hosts, of members names that are the same on every host, since members come and go at addresses not known in advance.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotwise.mesh.ports.ports import MeshError
from spotwise.wire.roles import MeshRole

#: The names of files in a folder of certificates, as cert-manager's and Kubernetes' secrets have them.
CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.crt", "tls.crt", "tls.key"
#: The name in every member's certificate.
MEMBER_NAME = "member.mesh.internal"
_ROLE_URI = "spotwise://mesh/"


def role_uri(role: MeshRole) -> str:
    """Return the URI by which a certificate names a role."""
    return f"{_ROLE_URI}{role}"


def role_name(role: MeshRole) -> str:
    """Return the DNS name in the certificates of a role's members."""
    return f"{role}.mesh.internal"


def roles_in(names: Iterable[str]) -> frozenset[str]:
    """Return the roles among the alternative names of a certificate."""
    return frozenset(name.removeprefix(_ROLE_URI) for name in names if name.startswith(_ROLE_URI))


@dataclass(frozen=True, slots=True)
class PlaneTls:
    """The folder with a process's certificate (`tls.crt`), its key (`tls.key`) and the mesh's CA (`ca.crt`)."""

    folder: Path

    def check(self) -> None:
        """Load all three; raises `MeshError` where one is missing, they do not belong together, or others can read the key."""
        try:
            self.client_context()
            mode = (self.folder / KEY_FILE).stat().st_mode & 0o777
        except (OSError, ssl.SSLError) as error:
            raise MeshError(
                f"the certificates in {self.folder} cannot be used: {error}; it needs {CA_FILE}, {CERTIFICATE_FILE} and "
                f"{KEY_FILE}, as `spotwise certs issue` writes them"
            ) from error
        if mode & 0o037:  # the group may read it, as in the secrets of a pod
            raise MeshError(
                f"{self.folder / KEY_FILE} has mode {mode:04o}, so that others can read it; run `chmod 600`"
            )

    def client_context(self) -> ssl.SSLContext:
        """Return what a client of broker or store connects with; raises `OSError`, `ssl.SSLError` included."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(self.folder / CA_FILE))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.folder / CERTIFICATE_FILE, self.folder / KEY_FILE)
        return context

    def redis_options(self) -> dict[str, Any]:
        """Return the arguments of a Redis client for a `rediss://` URL."""
        return {
            "ssl_ca_certs": str(self.folder / CA_FILE),
            "ssl_certfile": str(self.folder / CERTIFICATE_FILE),
            "ssl_keyfile": str(self.folder / KEY_FILE),
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
        }

    def pem(self) -> tuple[bytes, bytes, bytes]:
        """Return key, certificate and CA; raises `OSError`."""
        key, certificate, ca = ((self.folder / name).read_bytes() for name in (KEY_FILE, CERTIFICATE_FILE, CA_FILE))
        return key, certificate, ca
