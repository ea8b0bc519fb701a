"""Certificates and the mesh's secret on gRPC, and TLS to broker and store, with real servers."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from spotwise.cli.certs.authority import read_certificate
from spotwise.cli.certs.folder import CredentialsFolder
from spotwise.core.messages.groups import DissolveGroup, GroupOrder, SwapGroupKv
from spotwise.mesh.embedded.child_process import start_child
from spotwise.mesh.embedded.servers import LOOPBACK, free_port, nats_answers, nats_server, redis_server, running
from spotwise.mesh.grpc.control import answers, is_serving
from spotwise.mesh.grpc.control_access import ControlAccess
from spotwise.mesh.grpc.device_control import DeviceLink, Report, device_handler
from spotwise.mesh.nats.bus import NatsBus
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.redis.store import RedisStore
from spotwise.mesh.security.plane_tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE, PlaneTls
from spotwise.mesh.security.secrets import MeshSecret, read_mesh_secret
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.wire import subjects
from spotwise.wire.permissions import Principal
from spotwise.wire.roles import MeshRole
from tests.contracts.waiting import PATIENCE_S, until
from tests.integration.onlooker import heard_on
from tests.integration.running_services import control_server

pytestmark = pytest.mark.mesh


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs") / "mesh-certs"
    credentials = CredentialsFolder(folder)
    credentials.create("localhost", "localhost", 30, 300)
    credentials.issue(Principal(MeshRole.GATEWAY, "gateway-0"), (MeshRole.GATEWAY,), ("10.0.0.9", "a-host"), 30)
    return folder


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> PlaneTls:
    folder = tmp_path_factory.mktemp("stranger") / "mesh-certs"
    CredentialsFolder(folder).create("localhost", "localhost", 30, 300)
    return PlaneTls(folder / "members" / "worker")


def tls(certificates: Path, name: str) -> PlaneTls:
    return PlaneTls(certificates / "members" / name)


DISSOLVE = DissolveGroup("a test")


@dataclass
class Device:
    """A device's endpoint, and the orders that it received."""

    address: str
    orders: list[GroupOrder] = field(default_factory=list)

    async def obeys(self, access: ControlAccess, order: GroupOrder = DISSOLVE) -> str:
        """Give it an order; returns why the stream ended without that, or an empty text."""
        received, lost = len(self.orders), []
        link = DeviceLink("w", "d", self.address, lambda *_: None, lambda _, why: lost.append(why), access)
        link.send(order)
        try:
            await until(lambda: bool(lost) or len(self.orders) > received)
        finally:
            await link.close()
        return lost[0] if lost else ""


@contextlib.asynccontextmanager
async def device(access: ControlAccess) -> AsyncIterator[Device]:
    found = Device("")

    async def follow(_device: str, _leader: str, orders: AsyncIterator[GroupOrder], _report: Report) -> None:
        async for order in orders:
            found.orders.append(order)

    async with control_server(device=device_handler(follow, access), access=access) as (server, found.address):
        await server.set_serving(True)
        yield found


async def test_a_device_takes_orders_from_workers_certificates_only(certificates: Path, stranger: PlaneTls) -> None:
    worker = ControlAccess(tls(certificates, "worker"))
    async with device(worker) as ordered:
        assert await ordered.obeys(worker) == ""
        for role in ("gateway", "scheduler", "operator"):
            assert "is for a worker; the certificate is of " + role in await ordered.obeys(
                ControlAccess(tls(certificates, role))
            )
        count = len(ordered.orders)
        assert await ordered.obeys(ControlAccess(stranger)) != ""
        assert await ordered.obeys(ControlAccess()) != ""
        assert len(ordered.orders) == count == 1


async def test_no_order_goes_to_a_device_that_has_not_admitted_its_leader() -> None:
    """Whatever is written while it refuses would take the place of its reason."""
    early: list[bool] = []

    async def refuse(orders: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        order = asyncio.ensure_future(anext(orders))
        await asyncio.sleep(0.2)
        early.append(order.done())
        order.cancel()
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not for you")
        yield b""

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(refuse)
    service = grpc.method_handlers_generic_handler("spotwise.v1.DeviceControl", {"Follow": handler})
    server.add_generic_rpc_handlers((service,))
    refusing = Device(f"{LOOPBACK}:{server.add_insecure_port(f'{LOOPBACK}:0')}")
    await server.start()
    try:
        assert await refusing.obeys(ControlAccess()) == "not for you"
        assert early == [False]
    finally:
        await server.stop(None)


async def test_a_leader_trusts_workers_endpoints_only(certificates: Path, stranger: PlaneTls) -> None:
    leader = ControlAccess(tls(certificates, "worker"))
    for other in (ControlAccess(tls(certificates, "gateway")), ControlAccess(stranger), ControlAccess()):
        async with device(other) as impostor:
            assert await impostor.obeys(leader) != ""
            assert impostor.orders == []


async def test_health_needs_a_certificate_where_there_are_certificates(certificates: Path, stranger: PlaneTls) -> None:
    """Any role's certificate may ask whether a service serves: probes run in the container and have the service's own."""
    async with device(ControlAccess(tls(certificates, "worker"))) as endpoint:
        for role in ("worker", "operator", "gateway.gateway-0"):
            assert await is_serving(endpoint.address, access=ControlAccess(tls(certificates, role)))
        for access in (ControlAccess(stranger), ControlAccess()):
            assert not await answers(endpoint.address, timeout_s=1.0, access=access)


SECRET, OTHER = MeshSecret(b"s" * 32), MeshSecret(b"o" * 32)


async def test_without_certificates_orders_need_the_meshs_secret() -> None:
    """Another process of the machine cannot order a device about; health stays open to probes."""
    async with device(ControlAccess(secret=SECRET)) as ordered:
        assert await ordered.obeys(ControlAccess(secret=SECRET)) == ""
        for access in (ControlAccess(), ControlAccess(secret=OTHER)):
            assert "SPOTWISE_MESH_SECRET_FILE" in await ordered.obeys(access)
        late = ControlAccess(secret=SECRET, unix_s=lambda: 1.0)
        assert "the same time" in await ordered.obeys(late)
        assert len(ordered.orders) == 1
        assert await is_serving(ordered.address)


async def health_check_of(address: str, size: int) -> grpc.StatusCode:
    """Ask for a service's health with a message of that many bytes; returns the answer's status."""
    async with ControlAccess().channel(address, options=[("grpc.max_send_message_length", -1)]) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        try:
            await check(health_pb2.HealthCheckRequest(service="x" * size), timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK


async def test_messages_without_a_proof_are_bounded() -> None:
    """A stranger's large message is refused before it is held; a device takes orders of a large KV cache."""
    async with control_server() as (_, address):
        assert await health_check_of(address, 1 << 20) is grpc.StatusCode.NOT_FOUND
        assert await health_check_of(address, 5 << 20) is grpc.StatusCode.RESOURCE_EXHAUSTED
    access = ControlAccess(secret=SECRET)
    async with device(access) as ordered:
        assert await health_check_of(ordered.address, 65 << 20) is grpc.StatusCode.RESOURCE_EXHAUSTED
        blocks = tuple(range(1 << 20, 2 << 20))
        assert await ordered.obeys(access, SwapGroupKv(1, blocks, blocks, to_host=True)) == ""


async def test_calls_of_a_connection_are_bounded() -> None:
    """A stranger's calls that never end wait for one another."""
    async with control_server() as (_, address), ControlAccess().channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch
        calls = [watch(health_pb2.HealthCheckRequest()) for _ in range(300)]
        answered: list[object] = []

        async def first_of(call: AsyncIterator[object]) -> None:
            answered.append(await anext(aiter(call)))

        waiting = [asyncio.create_task(first_of(call)) for call in calls]
        await until(lambda: len(answered) >= 256)
        await asyncio.sleep(0.3)
        for task in waiting:
            task.cancel()
        assert len(answered) == 256


def test_a_proof_is_of_one_call_and_shows_no_secret() -> None:
    """Other ends, another method, another time or another secret: another proof; none has the secret in it."""
    access = ControlAccess(secret=SECRET, unix_s=lambda: 100.0)
    proofs = {
        access.proof("Follow", "d", "w"),
        access.proof("Follow", "w", "d"),
        access.proof("Follow", "dw", ""),
        access.proof("Describe", "d", "w"),
        ControlAccess(secret=SECRET, unix_s=lambda: 101.0).proof("Follow", "d", "w"),
        ControlAccess(secret=OTHER, unix_s=lambda: 100.0).proof("Follow", "d", "w"),
    }
    assert len(proofs) == 6
    assert "ssss" not in str(proofs)


@pytest.fixture(scope="module")
def tls_broker(certificates: Path) -> Iterator[int]:
    """A broker that runs with the configuration that `spotwise certs` wrote; its port."""
    folder, port = certificates / "servers" / "nats", free_port()
    config = (folder / "nats-server.conf").read_text().replace("port: 4222", f"port: {port}")
    (folder / "test.conf").write_text(config)
    argv = (nats_server(folder).argv[0], "--config", "test.conf")
    child = start_child(argv, log_path=folder / "nats.log", folder=folder)
    try:
        asyncio.run(until(lambda: nats_answers(port)))
        yield port
    finally:
        child.stop()


def url_of(certificates: Path, name: str, variable: str, port: int) -> str:
    """A member's URL from its `mesh.env`, with the test's port."""
    lines = (certificates / "members" / name / "mesh.env").read_text().splitlines()
    [url] = [line.partition("=")[2] for line in lines if line.startswith(variable)]
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition(":")[0] + f":{port}").geturl()


async def test_members_reach_the_broker_over_tls(certificates: Path, tls_broker: int) -> None:
    """With the URL, the certificate and the server's configuration of `spotwise certs`, and the permissions of the role."""
    gateway = await NatsBus.connect(
        url_of(certificates, "gateway.gateway-0", "SPOTWISE_NATS_URL", tls_broker),
        "gateway-0",
        tls=tls(certificates, "gateway.gateway-0"),
    )
    scheduler = await NatsBus.connect(
        url_of(certificates, "scheduler", "SPOTWISE_NATS_URL", tls_broker), "s", tls=tls(certificates, "scheduler")
    )
    received = await heard_on(scheduler, subjects.REQUESTS)
    await gateway.publish(subjects.REQUESTS, b"a request")
    await until(lambda: received == [b"a request"])
    for bus in (gateway, scheduler):
        await bus.close()


async def test_a_broker_with_tls_refuses_strangers(certificates: Path, stranger: PlaneTls, tls_broker: int) -> None:
    """A right password without a certificate of the mesh's CA is not enough, and no client trusts a broker of another CA."""
    url = url_of(certificates, "worker", "SPOTWISE_NATS_URL", tls_broker)
    for given in (stranger, None):
        with pytest.raises(MeshError, match="no NATS server answers"):
            await NatsBus.connect(url, "stranger", connect_timeout_s=1.0, tls=given)


@pytest.fixture
async def tls_store(certificates: Path, tmp_path: Path) -> AsyncIterator[int]:
    """A store behind a TLS server with the store's certificate: the embedded program is built without TLS."""
    folder = certificates / "servers" / "redis"
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / CA_FILE))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / CERTIFICATE_FILE, folder / KEY_FILE)
    with running(redis_server(tmp_path)) as server:

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            store_reader, store_writer = await asyncio.open_connection(LOOPBACK, server.port)
            with contextlib.suppress(OSError, ssl.SSLError):
                async with asyncio.TaskGroup() as group:
                    group.create_task(_copy(reader, store_writer))
                    group.create_task(_copy(store_reader, writer))

        async with await asyncio.start_server(serve, LOOPBACK, 0, ssl=context) as listener:
            yield listener.sockets[0].getsockname()[1]


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def test_members_reach_the_store_over_tls(certificates: Path, stranger: PlaneTls, tls_store: int) -> None:
    """With a certificate of the mesh's CA; without one, or with another CA's, there is no connection."""
    url = f"rediss://localhost:{tls_store}/0"
    store = await RedisStore.connect(url, tls=tls(certificates, "worker"))
    assert await store.members() == []
    await store.close()
    context = stranger.client_context()
    with pytest.raises((ssl.SSLError, OSError)):
        await asyncio.wait_for(asyncio.open_connection("localhost", tls_store, ssl=context), PATIENCE_S)


def test_all_files_are_their_owners(certificates: Path) -> None:
    """Folders 0700, files 0600: keys, passwords, the CA and the secret."""
    for path in [certificates, *certificates.rglob("*")]:
        if path.name not in ("nats.log", "test.conf"):
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert read_mesh_secret(certificates / "members" / "worker" / "mesh.secret").key("x")
    assert not (certificates / "members" / "gateway" / "mesh.secret").exists()


def test_a_certificate_names_role_hosts_and_expiry(certificates: Path) -> None:
    """What `spotwise certs list` shows, and `renew` keeps while the key changes."""
    credentials = CredentialsFolder(certificates)
    folder = certificates / "members" / "gateway.gateway-0"
    before, key = read_certificate(folder), (folder / KEY_FILE).read_bytes()
    assert (before.name, before.roles) == ("gateway.gateway-0", ("gateway",))
    assert set(before.hosts) == {"10.0.0.9", "a-host"}
    after = credentials.renew(folder, 60)
    assert (after.name, after.roles, after.hosts) == (before.name, before.roles, before.hosts)
    assert after.expires > before.expires
    assert (folder / KEY_FILE).read_bytes() != key
    PlaneTls(folder).check()
    assert len(credentials.certificates()) == 2 + len(MeshRole) + 1


def test_unusable_certificates_are_refused_at_the_start(certificates: Path, tmp_path: Path) -> None:
    """A folder without them, a key of another certificate and a key that others can read are wrong settings with a remedy."""
    good = certificates / "members" / "worker"
    assert ServiceSettings(tls_dir=good).plane_tls == PlaneTls(good)
    with pytest.raises(ValueError, match="spotwise certs issue"):
        ServiceSettings(tls_dir=tmp_path)
    for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE):
        (tmp_path / name).write_bytes((good / name).read_bytes())
    (tmp_path / KEY_FILE).chmod(0o644)
    with pytest.raises(ValueError, match="others can read it"):
        ServiceSettings(tls_dir=tmp_path)
    (tmp_path / KEY_FILE).write_bytes((certificates / "members" / "gateway" / KEY_FILE).read_bytes())
    with pytest.raises(ValueError, match="cannot be used"):
        ServiceSettings(tls_dir=tmp_path)
