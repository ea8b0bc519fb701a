"""The API's port: a taken one, one of another machine, and when the gateway reports READY."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.gateway.__main__ import serve
from spotwise.gateway.settings import GatewaySettings
from spotwise.mesh.embedded.servers import LOOPBACK, free_port
from spotwise.mesh.grpc.control import ControlServer
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.settings import ServiceSettings
from tests.contracts.waiting import PATIENCE_S
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore
from tests.unit.gateway.certificates import TestAuthority


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[ServiceHost]:
    """The members opened, each in a mesh in memory."""
    opened: list[ServiceHost] = []

    @asynccontextmanager
    async def open_in_memory(settings: ServiceSettings, kind: MemberKind) -> AsyncIterator[ServiceHost]:
        control = ControlServer(LOOPBACK, 0)
        await control.start()
        member = Member("gateway-0", kind, 1, MemberState.STARTING, "a-host", 1, f"{LOOPBACK}:{control.port}")
        host = ServiceHost(settings, MemoryBus(MemoryBroker()), MemoryStore(), control, member)
        opened.append(host)
        try:
            async with host.joined():
                yield host
        finally:
            await control.close()

    monkeypatch.setattr(ServiceHost, "open", open_in_memory)
    return opened


def settings(model_dir: Path, host: str, port: int, **more: Any) -> GatewaySettings:
    """A gateway's settings."""
    return GatewaySettings(service_id="gateway-0", model_dir=model_dir, host=host, port=port, **more)


@pytest.mark.parametrize("host", [LOOPBACK, "192.0.2.1", "300.1.1.1"])
async def test_a_gateway_that_cannot_listen_ends_with_a_mesh_error_and_is_never_ready(
    model_dir: Path, hosts: list[ServiceHost], host: str
) -> None:
    """A taken port, an address of another machine, and none at all; the message names address and settings."""
    with socket.create_server((LOOPBACK, 0)) as taken, capture_logs() as logs:
        port = taken.getsockname()[1]
        with pytest.raises(MeshError, match=rf"{host}:{port} .*SPOTWISE_HOST.*SPOTWISE_PORT"):
            async with asyncio.timeout(PATIENCE_S):
                await serve(settings(model_dir, host, port, allow_anonymous=True))
    assert "ready" not in [line["event"] for line in logs]
    assert hosts[0].member.state is MemberState.LEFT


async def test_a_gateway_that_reports_ready_listens(
    model_dir: Path, hosts: list[ServiceHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    answered: list[int] = []
    run = ServiceHost.run

    async def request_and_stop(host: ServiceHost, *arguments: Any) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            answered.append((await client.get(f"http://{LOOPBACK}:{port}/v1/models")).status_code)
        host.stop()
        await run(host)

    monkeypatch.setattr(ServiceHost, "run", request_and_stop)
    async with asyncio.timeout(PATIENCE_S):
        await serve(settings(model_dir, LOOPBACK, port))
    assert answered == [200]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "a-name"])
async def test_a_gateway_that_others_reach_without_a_key_does_not_start(
    model_dir: Path, hosts: list[ServiceHost], host: str
) -> None:
    """Unless that is said; the message has what to do."""
    with pytest.raises(MeshError, match=r"keys create NAME.*SPOTWISE_API_KEYS.*SPOTWISE_ALLOW_ANONYMOUS=true"):
        async with asyncio.timeout(PATIENCE_S):
            await serve(settings(model_dir, host, free_port()))
    assert hosts[0].member.state is MemberState.LEFT


@pytest.mark.parametrize("mode", [0o644, 0o640])
async def test_files_that_others_may_read_are_refused(
    model_dir: Path, hosts: list[ServiceHost], tmp_path: Path, mode: int
) -> None:
    """Keys' digests and the private key; the message names the file's setting and the remedy."""
    secret = tmp_path / "secret"
    secret.write_text("")
    secret.chmod(mode)
    for given in ({"api_keys_file": secret}, {"tls_cert": secret, "tls_key": secret}):
        with pytest.raises(MeshError, match=r"SPOTWISE_.*chmod 600"):
            async with asyncio.timeout(PATIENCE_S):
                await serve(settings(model_dir, LOOPBACK, free_port(), **given))
    assert hosts


async def test_a_gateway_with_a_certificate_and_keys_serves_over_tls(
    model_dir: Path, hosts: list[ServiceHost], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By its settings alone; on all addresses too, since it has a key."""
    authority = TestAuthority(tmp_path)
    files, port = authority.issue("gateway"), free_port()
    answered: list[int] = []
    run = ServiceHost.run

    async def request_and_stop(host: ServiceHost, *arguments: Any) -> None:
        trusting = ssl.create_default_context(cafile=str(authority.ca))
        async with httpx.AsyncClient(trust_env=False, verify=trusting) as client:
            for key in ("wrong", "secret"):
                headers = {"Authorization": f"Bearer {key}"}
                response = await client.get(f"https://{LOOPBACK}:{port}/v1/models", headers=headers)
                answered.append(response.status_code)
        host.stop()
        await run(host)

    monkeypatch.setattr(ServiceHost, "run", request_and_stop)
    async with asyncio.timeout(PATIENCE_S):
        given = {"api_keys": "acme:secret", "tls_cert": files.certificate, "tls_key": files.key}
        await serve(settings(model_dir, "0.0.0.0", port, **given))
    assert answered == [401, 200]
