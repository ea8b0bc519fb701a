"""Access to the mesh's gRPC endpoints: for holders of a certificate, or, without certificates, of the mesh's secret.

With certificates every call needs one of the mesh's CA, health checks included, and orders to devices one of a worker. Without
them an order to a device needs a proof that the caller has the secret: an authentication code of method, ends and time, never
the secret, so that a process that listens at a dead device's port learns nothing that it could order others with. Health checks
and descriptions of engines, which change nothing, need none then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.security.plane_tls import MEMBER_NAME, PlaneTls, role_name, roles_in
from spotwise.mesh.security.secrets import MeshSecret, is_proof, proof
from spotwise.wire.roles import MeshRole

#: Metadata of a call: Unix seconds and the code, in hexadecimal, separated by a dot.
_PROOF = "spotwise-proof"
#: How far the clocks of two hosts may differ, and how long a proof is valid, seconds.
_VALID_S = 300
_PURPOSE = "gRPC control"
_ALTERNATIVE_NAMES = "x509_subject_alternative_name"

Options = Sequence[tuple[str, Any]]

#: gRPC would send what is meant for a member to the proxy that `http_proxy` names, and that one cannot reach members.
_DIRECT = ("grpc.enable_http_proxy", 0)


@dataclass(frozen=True, slots=True)
class ControlAccess:
    """A process's certificates and secret for gRPC; with neither, every process that reaches an endpoint may call it.

    Args:
        unix_s: the clock.
    """

    tls: PlaneTls | None = None
    secret: MeshSecret | None = None
    unix_s: Callable[[], float] = time.time

    def channel(self, address: str, role: MeshRole | None = None, options: Options = ()) -> grpc.aio.Channel:
        """Connect to an endpoint, of a member of that role; raises `MeshError` where the certificates cannot be read."""
        credentials = self.channel_credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=[*options, _DIRECT])
        return grpc.aio.secure_channel(address, credentials, options=[*options, _DIRECT, _expecting(role)])

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Return a caller's credentials, `None` without certificates; raises `MeshError` where they cannot be read."""
        if self.tls is None:
            return None
        key, certificate, ca = self._pem()
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def add_port(self, server: grpc.aio.Server, address: str) -> int:
        """Let a server listen; returns the port. Raises `RuntimeError` where it is taken, and `MeshError` where the
        certificates cannot be read.
        """
        if self.tls is None:
            return int(server.add_insecure_port(address))
        key, certificate, ca = self._pem()
        credentials = grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)
        return int(server.add_secure_port(address, credentials))

    def proof(self, method: str, *ends: str) -> tuple[tuple[str, str], ...]:
        """Return the metadata that proves the secret for a call of `method` between `ends`; empty without a secret."""
        if self.secret is None:
            return ()
        now = str(int(self.unix_s()))
        return ((_PROOF, f"{now}.{proof(self.secret.key(_PURPOSE), *_fields(now, method, *ends)).hex()}"),)

    async def admit(self, context: Any, role: MeshRole, method: str, *ends: str) -> None:
        """End a call that is not from a member of that role, or has no proof."""
        if self.tls is not None:
            names = context.auth_context().get(_ALTERNATIVE_NAMES, ())
            found = roles_in(name.decode(errors="replace") for name in names)
            if role not in found:
                shown = ", ".join(sorted(found)) or "no role"
                await context.abort(
                    grpc.StatusCode.PERMISSION_DENIED, f"{method} is for a {role}; the certificate is of {shown}"
                )
        elif self.secret is not None and not self._is_proved(self.secret, context, method, *ends):
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                f"{method} needs a proof of the mesh's secret; do both processes have the same SPOTWISE_MESH_SECRET_FILE, "
                "and their hosts the same time?",
            )

    def _is_proved(self, secret: MeshSecret, context: Any, method: str, *ends: str) -> bool:
        at, _, code = str(dict(context.invocation_metadata()).get(_PROOF, "")).partition(".")
        if not at.isascii() or not at.isdecimal() or abs(int(at[:12]) - self.unix_s()) > _VALID_S:
            return False
        try:
            return is_proof(bytes.fromhex(code), secret.key(_PURPOSE), *_fields(at, method, *ends))
        except ValueError:
            return False

    def _pem(self) -> tuple[bytes, bytes, bytes]:
        assert self.tls is not None
        try:
            return self.tls.pem()
        except OSError as error:
            raise MeshError(f"the certificates in {self.tls.folder} cannot be read: {error.strerror}") from error


def _fields(*fields: str) -> list[bytes]:
    return [field.encode() for field in fields]


def blocking_channel(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    """Connect a thread to a member's endpoint, of any role, with the credentials that `ControlAccess` returned."""
    if credentials is None:
        return grpc.insecure_channel(address, options=[_DIRECT])
    return grpc.secure_channel(address, credentials, options=[_DIRECT, _expecting(None)])


def _expecting(role: MeshRole | None) -> tuple[str, Any]:
    return ("grpc.ssl_target_name_override", MEMBER_NAME if role is None else role_name(role))


#: Without certificates and secret.
OPEN_ACCESS = ControlAccess()
