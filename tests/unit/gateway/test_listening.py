"""The API's port: a taken one, one of another machine, when the gateway reports READY, and who can talk to it over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from spotwise.cli.client.chat_stream import ChatClient
from spotwise.cli.errors import CommandError
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.gateway.__main__ import serve
from spotwise.gateway.settings import GatewaySettings
from spotwise.http.limits import HttpLimits
from spotwise.http.server import HttpServer
from spotwise.http.tls import ServerTls
from spotwise.mesh.embedded.servers import LOOPBACK, free_port
from spotwise.mesh.grpc.control import ControlServer
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.settings import ServiceSettings
from tests.contracts.waiting import PATIENCE_S
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore
from tests.unit.gateway.apps import Http, MakeApp
from tests.unit.gateway.certificates import IssuedFiles, TestAuthority
from tests.unit.gateway.fake_mesh import CHAT, CHATS, MODEL
from tests.unit.gateway.listening import config_of


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


def stop_after(monkeypatch: pytest.MonkeyPatch, request: Callable[[], Awaitable[None]]) -> None:
    """Let a gateway that is ready be asked, and stop."""
    run = ServiceHost.run

    async def request_and_stop(host: ServiceHost, *arguments: Any) -> None:
        await request()
        host.stop()
        await run(host)

    monkeypatch.setattr(ServiceHost, "run", request_and_stop)


async def test_a_gateway_that_reports_ready_listens(
    model_dir: Path, hosts: list[ServiceHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    answered: list[int] = []

    async def request() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            answered.append((await client.get(f"http://{LOOPBACK}:{port}/v1/models")).status_code)

    stop_after(monkeypatch, request)
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
    model_dir: Path, hosts: list[ServiceHost], monkeypatch: pytest.MonkeyPatch, authority: TestAuthority
) -> None:
    """By its settings alone; on all addresses too, since it has a key."""
    files, port = authority.issue("gateway"), free_port()
    answered: list[int] = []

    async def request() -> None:
        async with httpx.AsyncClient(trust_env=False, verify=trusting(authority)) as client:
            for key in ("wrong", "secret"):
                headers = {"Authorization": f"Bearer {key}"}
                response = await client.get(f"https://{LOOPBACK}:{port}/v1/models", headers=headers)
                answered.append(response.status_code)

    stop_after(monkeypatch, request)
    async with asyncio.timeout(PATIENCE_S):
        given = {"api_keys": "acme:secret", "tls_cert": files.certificate, "tls_key": files.key}
        await serve(settings(model_dir, "0.0.0.0", port, **given))
    assert answered == [401, 200]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def files(authority: TestAuthority) -> IssuedFiles:
    return authority.issue("gateway")


#: Serves an app over TLS.
Serve = Callable[..., AbstractAsyncContextManager[HttpServer]]


@pytest.fixture
def served(make_app: MakeApp) -> Serve:
    """A server on a free port, which listens, or has failed to."""

    @asynccontextmanager
    async def serve(tls: ServerTls, port: int | None = None) -> AsyncIterator[HttpServer]:
        config = config_of(make_app(), HttpLimits(), lambda _: None, host=LOOPBACK, port=port or free_port())
        config.load()
        config.ssl = tls.context
        server = HttpServer(config, handshake_timeout_s=1.0)
        serving = asyncio.create_task(server.serve())
        await server.listening
        try:
            yield server
        finally:
            server.should_exit = True
            async with asyncio.timeout(PATIENCE_S):
                await serving

    return serve


def url_of(server: HttpServer) -> str:
    return f"https://{LOOPBACK}:{server.config.port}"


def over_tls(authority: TestAuthority, server: HttpServer, client: IssuedFiles | None = None) -> Http:
    """A client that trusts the authority."""
    return httpx.AsyncClient(verify=trusting(authority, client), trust_env=False, base_url=url_of(server))


def trusting(authority: TestAuthority, client: IssuedFiles | None = None) -> ssl.SSLContext:
    """A client's context."""
    context = ssl.create_default_context(cafile=str(authority.ca))
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return context


async def subject(port: int, authority: TestAuthority) -> str:
    """The serial number of the certificate that a new connection sees."""
    _, writer = await asyncio.open_connection(LOOPBACK, port, ssl=trusting(authority))
    found = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return str(found)


async def test_an_answer_and_a_stream_over_tls(authority: TestAuthority, files: IssuedFiles, served: Serve) -> None:
    """A client that trusts the authority reads both; plain HTTP, and one that does not trust it, get nothing."""
    async with served(ServerTls(files.certificate, files.key)) as server:
        async with over_tls(authority, server) as client:
            answer = await client.post(CHATS, json=CHAT)
            assert answer.json()["choices"][0]["message"]["content"] == "Hello, world!"
            streamed = await client.post(CHATS, json=CHAT | {"stream": True})
            assert streamed.text.endswith("data: [DONE]\n\n")
        async with httpx.AsyncClient(trust_env=False) as stranger:
            with pytest.raises(httpx.ConnectError):
                await stranger.get(f"{url_of(server)}/health")
            with pytest.raises(httpx.HTTPError):
                await stranger.get(f"{url_of(server).replace('https', 'http')}/health")


async def test_a_renewed_certificate_needs_no_restart(
    authority: TestAuthority, files: IssuedFiles, served: Serve
) -> None:
    """Running connections go on, new ones get it; half of a renewal changes nothing."""
    tls = ServerTls(files.certificate, files.key)
    async with served(tls) as server, over_tls(authority, server) as client:
        assert (await client.get("/health")).status_code == 200
        first = await subject(server.config.port, authority)
        old_key = files.key.read_bytes()
        authority.issue("gateway")
        new_key = files.key.read_bytes()
        files.key.write_bytes(old_key)
        await tls.follow_files()
        assert await subject(server.config.port, authority) == first
        files.key.write_bytes(new_key)
        os.utime(files.key)
        await tls.follow_files()
        assert await subject(server.config.port, authority) != first
        assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    "sent", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"], ids=["nothing", "half", "http"]
)
async def test_who_does_not_finish_the_handshake_is_cut_off(files: IssuedFiles, served: Serve, sent: bytes) -> None:
    """It takes no place, and its connection ends; the server stops without waiting for it."""
    async with served(ServerTls(files.certificate, files.key)) as server:
        reader, writer = await asyncio.open_connection(LOOPBACK, server.config.port)
        writer.write(sent)
        assert not server.server_state.connections
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                while await reader.read(100):  # perhaps an alert
                    pass
        writer.close()


async def test_with_a_client_authority_each_client_shows_a_certificate(
    authority: TestAuthority, files: IssuedFiles, served: Serve, tmp_path: Path
) -> None:
    """Its own authority's are accepted; none, and another authority's, are not."""
    other = TestAuthority(tmp_path, "other").issue("client")
    async with served(ServerTls(files.certificate, files.key, authority.ca)) as server:
        for shown, accepted in ((authority.issue("client"), True), (None, False), (other, False)):
            async with over_tls(authority, server, shown) as client:
                if accepted:
                    assert (await client.get("/health")).status_code == 200
                else:
                    with pytest.raises(httpx.TransportError):
                        await client.get("/health")


def test_wrong_files_are_named(authority: TestAuthority, files: IssuedFiles, tmp_path: Path) -> None:
    """Missing, not private, not a pair, no certificates."""
    with pytest.raises(ValueError, match="cannot be read"):
        ServerTls(tmp_path / "none.pem", files.key)
    with pytest.raises(ValueError, match="no certificate and its key"):
        ServerTls(authority.ca, files.key)
    with pytest.raises(ValueError, match="holds no certificates"):
        ServerTls(files.certificate, files.key, files.key)
    files.key.chmod(0o644)
    try:
        with pytest.raises(ValueError, match="chmod 600"):
            ServerTls(files.certificate, files.key)
    finally:
        files.key.chmod(0o600)


@pytest.mark.parametrize(
    "given",
    [{"tls_cert": "a.pem"}, {"tls_key": "a.key"}, {"tls_client_ca": "ca.pem"}],
    ids=lambda given: next(iter(given)),
)
def test_half_a_configuration_is_refused(model_dir: Path, given: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match=r"SPOTWISE_TLS_CERT"):
        GatewaySettings(model_dir=model_dir, **given)  # type: ignore[arg-type]


async def test_spotwise_chat_trusts_the_given_authority(
    authority: TestAuthority, files: IssuedFiles, served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `--ca` or `SPOTWISE_CA_FILE`; without, it says what to give."""
    monkeypatch.delenv("SPOTWISE_CA_FILE", raising=False)

    def model(url: str, ca_file: Path | None) -> str:
        with contextlib.closing(ChatClient(url, ca_file=ca_file)) as client:
            return client.model()

    async with served(ServerTls(files.certificate, files.key)) as server:
        assert await asyncio.to_thread(model, url_of(server), authority.ca) == MODEL
        with pytest.raises(CommandError, match=r"is not trusted .*--ca FILE"):
            await asyncio.to_thread(model, url_of(server), None)
        monkeypatch.setenv("SPOTWISE_CA_FILE", str(authority.ca))
        assert await asyncio.to_thread(model, url_of(server), None) == MODEL


async def test_a_taken_port_is_a_mesh_error_with_tls_as_well(files: IssuedFiles, served: Serve) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken, pytest.raises(MeshError, match="SPOTWISE_HOST, SPOTWISE_PORT"):
        async with served(ServerTls(files.certificate, files.key), taken.getsockname()[1]):
            pass
