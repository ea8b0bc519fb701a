"""Tests of TLS at the API: who can talk to it, and a certificate's renewal while it serves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette

from spotwise.cli.client.chat_stream import ChatClient
from spotwise.cli.errors import CommandError
from spotwise.gateway.settings import GatewaySettings
from spotwise.http.limits import HttpLimits
from spotwise.http.protocol import http_protocol
from spotwise.http.server import HttpServer
from spotwise.http.tls import ServerTls
from spotwise.mesh.embedded.servers import LOOPBACK, free_port
from spotwise.mesh.ports.ports import MeshError
from tests.contracts.waiting import PATIENCE_S
from tests.unit.gateway.certificates import IssuedFiles, TestAuthority
from tests.unit.gateway.fake_mesh import CHAT, MODEL


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def files(authority: TestAuthority) -> IssuedFiles:
    return authority.issue("gateway")


@pytest.fixture
def make_server(make_app: Callable[..., Starlette]) -> Callable[[ServerTls], HttpServer]:
    def make(tls: ServerTls) -> HttpServer:
        config = uvicorn.Config(
            make_app(),
            host=LOOPBACK,
            port=free_port(),
            http=http_protocol(HttpLimits(), lambda _: None),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        config.load()
        config.ssl = tls.context
        return HttpServer(config, handshake_timeout_s=1.0)

    return make


async def served(server: HttpServer) -> AsyncIterator[str]:
    """Serve for a while; gives the URL."""
    serving = asyncio.create_task(server.serve())
    await server.listening
    try:
        yield f"https://{LOOPBACK}:{server.config.port}"
    finally:
        server.should_exit = True
        async with asyncio.timeout(PATIENCE_S):
            await serving


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


async def test_an_answer_and_a_stream_over_tls(
    authority: TestAuthority, files: IssuedFiles, make_server: Callable[[ServerTls], HttpServer]
) -> None:
    """A client that trusts the authority reads both; plain HTTP, and one that does not trust it, get nothing."""
    server = make_server(ServerTls(files.certificate, files.key))
    async for url in served(server):
        async with httpx.AsyncClient(verify=trusting(authority), trust_env=False, base_url=url) as client:
            answer = await client.post("/v1/chat/completions", json=CHAT)
            assert answer.json()["choices"][0]["message"]["content"] == "Hello, world!"
            streamed = await client.post("/v1/chat/completions", json=CHAT | {"stream": True})
            assert streamed.text.endswith("data: [DONE]\n\n")
        async with httpx.AsyncClient(trust_env=False) as stranger:
            with pytest.raises(httpx.ConnectError):
                await stranger.get(f"{url}/health")
            with pytest.raises(httpx.HTTPError):
                await stranger.get(f"{url.replace('https', 'http')}/health")


async def test_a_renewed_certificate_needs_no_restart(
    authority: TestAuthority, files: IssuedFiles, make_server: Callable[[ServerTls], HttpServer]
) -> None:
    """Running connections go on, new ones get it; half of a renewal changes nothing."""
    tls = ServerTls(files.certificate, files.key)
    server = make_server(tls)
    async for url in served(server):
        async with httpx.AsyncClient(verify=trusting(authority), trust_env=False, base_url=url) as client:
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
async def test_who_does_not_finish_the_handshake_is_cut_off(
    files: IssuedFiles, make_server: Callable[[ServerTls], HttpServer], sent: bytes
) -> None:
    """It takes no place, and its connection ends; the server stops without waiting for it."""
    server = make_server(ServerTls(files.certificate, files.key))
    async for _ in served(server):
        reader, writer = await asyncio.open_connection(LOOPBACK, server.config.port)
        writer.write(sent)
        assert not server.server_state.connections
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                while await reader.read(100):  # perhaps an alert
                    pass
        writer.close()


async def test_a_taken_port_is_a_mesh_error(files: IssuedFiles, make_server: Callable[[ServerTls], HttpServer]) -> None:
    """As without TLS."""
    server = make_server(ServerTls(files.certificate, files.key))
    with socket.create_server((LOOPBACK, server.config.port)):
        await server.serve()
        with pytest.raises(MeshError, match="SPOTWISE_HOST, SPOTWISE_PORT"):
            await server.listening


async def test_with_a_client_authority_each_client_shows_a_certificate(
    authority: TestAuthority, files: IssuedFiles, make_server: Callable[[ServerTls], HttpServer], tmp_path: Path
) -> None:
    """Its own authority's are accepted; none, and another authority's, are not."""
    server = make_server(ServerTls(files.certificate, files.key, authority.ca))
    other = TestAuthority(tmp_path, "other").issue("client")
    async for url in served(server):
        for shown, accepted in ((authority.issue("client"), True), (None, False), (other, False)):
            async with httpx.AsyncClient(verify=trusting(authority, shown), trust_env=False) as client:
                if accepted:
                    assert (await client.get(f"{url}/health")).status_code == 200
                else:
                    with pytest.raises(httpx.TransportError):
                        await client.get(f"{url}/health")


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
    authority: TestAuthority,
    files: IssuedFiles,
    make_server: Callable[[ServerTls], HttpServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By `--ca` or `SPOTWISE_CA_FILE`; without, it says what to give."""
    monkeypatch.delenv("SPOTWISE_CA_FILE", raising=False)
    server = make_server(ServerTls(files.certificate, files.key))

    def model(url: str, ca_file: Path | None) -> str:
        with contextlib.closing(ChatClient(url, ca_file=ca_file)) as client:
            return client.model()

    async for url in served(server):
        assert await asyncio.to_thread(model, url, authority.ca) == MODEL
        with pytest.raises(CommandError, match=r"is not trusted .*--ca FILE"):
            await asyncio.to_thread(model, url, None)
        monkeypatch.setenv("SPOTWISE_CA_FILE", str(authority.ca))
        assert await asyncio.to_thread(model, url, None) == MODEL
