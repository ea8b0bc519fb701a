"""The transfer plane over real UCX keeps the contract that its in-memory twin keeps; test_ucx_* have what UCX alone has."""

from __future__ import annotations

import pytest

from spotwise.mesh.ucx_transfer import UcxKvTransport
from tests.contracts.kv_transport import KvTransportContract, MakeTransport

pytestmark = pytest.mark.mesh


class TestUcxKvTransport(KvTransportContract):
    @pytest.fixture
    def make(self) -> MakeTransport:
        """Transports on loopback."""
        return UcxKvTransport
