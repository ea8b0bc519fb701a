"""The transfer plane over real UCX keeps the contract that its in-memory twin keeps; test_ucx_* have what UCX alone has."""

from __future__ import annotations

from functools import partial

import pytest

from spotwise.mesh.links.ucx_transfer import TransferSettings, UcxKvTransport
from spotwise.mesh.security.link_security import LinkEncryption, LinkSecurity
from spotwise.mesh.security.secrets import MeshSecret
from tests.contracts.kv_transport import KvTransportContract, MakeTransport

pytestmark = pytest.mark.mesh


class TestUcxKvTransport(KvTransportContract):
    @pytest.fixture
    def make(self) -> MakeTransport:
        return UcxKvTransport


class TestUcxKvTransportEncrypted(KvTransportContract):
    @pytest.fixture
    def make(self) -> MakeTransport:
        """Transports on loopback that know a secret and encrypt."""
        security = LinkSecurity(MeshSecret(b"s" * 32), LinkEncryption.ON)
        return partial(UcxKvTransport, settings=TransferSettings(security=security))
