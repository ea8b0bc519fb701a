"""The transfer plane over real UCX keeps the contract that its in-memory twin keeps; test_ucx_* have what UCX alone has."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from spotwise.core.messages.numerics import Crossing
from spotwise.mesh.links.ucx_transfer import TransferSettings, UcxKvTransport
from spotwise.mesh.ports.ports import HandoffHandler, KvMemory
from spotwise.mesh.security.link_security import LinkEncryption, LinkSecurity
from spotwise.mesh.security.secrets import MeshSecret
from tests.contracts.kv_transport import KvTransportContract, MakeTransport

pytestmark = pytest.mark.mesh


def transport(
    memory: KvMemory,
    worker_id: str,
    incarnation: int,
    on_handoff: HandoffHandler,
    *,
    crossing: Crossing,
    security: LinkSecurity | None = None,
    **options: Any,
) -> UcxKvTransport:
    settings = TransferSettings(security=security or LinkSecurity(), crossing=crossing)
    return UcxKvTransport(memory, worker_id, incarnation, on_handoff, settings, **options)


class TestUcxKvTransport(KvTransportContract):
    @pytest.fixture
    def make(self) -> MakeTransport:
        return transport


class TestUcxKvTransportEncrypted(KvTransportContract):
    @pytest.fixture
    def make(self) -> MakeTransport:
        """Transports on loopback that know a secret and encrypt."""
        security = LinkSecurity(MeshSecret(b"s" * 32), LinkEncryption.ON)
        return partial(transport, security=security)
