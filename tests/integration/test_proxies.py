"""Proxies that the environment names, as company machines have them, lie in no way to the mesh's own addresses."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from spotwise.cli.certs.folder import CredentialsFolder
from spotwise.cli.client.gateway_access import client_options
from spotwise.cloud.ec2_client import Ec2Options
from spotwise.cloud.ec2_instances import Ec2Instances
from spotwise.mesh.embedded.servers import LOOPBACK, free_port, nats_server, redis_server, running
from spotwise.mesh.grpc.control import is_serving
from spotwise.mesh.grpc.control_access import ControlAccess, blocking_channel
from spotwise.mesh.nats.bus import NatsBus
from spotwise.mesh.redis.store import RedisStore
from spotwise.mesh.security.plane_tls import PlaneTls
from spotwise.wire.permissions import Principal
from spotwise.wire.roles import MeshRole
from tests.fakes.http_servers import QuietHandler, answering
from tests.integration.running_services import control_server

pytestmark = pytest.mark.mesh

ROOT = Path(__file__).parents[2]
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
KEY_OF_THE_ROLE = "AKIAOFTHEROLE"


def name_proxy(patch: pytest.MonkeyPatch, url: str) -> None:
    """Let every variable that names a proxy name this one, with no exception."""
    for name in VARIABLES:
        patch.setenv(name, url)
        patch.setenv(name.upper(), url)
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        patch.setenv(name, "")


@pytest.fixture(autouse=True)
def dead_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    name_proxy(monkeypatch, f"http://{LOOPBACK}:{free_port()}")


@pytest.mark.parametrize("secured", [False, True], ids=["open", "certificates"])
async def test_members_are_reached_by_grpc(secured: bool, tmp_path: Path) -> None:
    access = ControlAccess()
    if secured:
        credentials = CredentialsFolder(tmp_path / "mesh-certs")
        credentials.create("localhost", "localhost", 30, 300)
        credentials.issue(Principal(MeshRole.GATEWAY, "gateway-0"), (MeshRole.GATEWAY,), (LOOPBACK,), 30)
        access = ControlAccess(PlaneTls(tmp_path / "mesh-certs" / "members" / "gateway.gateway-0"))
    async with control_server(access=access) as (server, address):
        await server.set_serving(True)
        assert await is_serving(address, access=access)
        with blocking_channel(address, access.channel_credentials()) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check.future(health_pb2.HealthCheckRequest(), timeout=10.0)
            while not check.done():
                await is_serving(address, access=access)  # gives the server its turn
            assert check.result().status == health_pb2.HealthCheckResponse.SERVING


async def test_broker_and_store_are_reached(tmp_path: Path) -> None:
    with running(nats_server(tmp_path)) as broker, running(redis_server(tmp_path)) as server:
        await (await NatsBus.connect(broker.url, "a-test")).close()
        store = await RedisStore.connect(server.url)
        await store.close()


def test_a_local_gateway_is_reached_and_a_distant_one_through_the_proxy() -> None:
    for host in (LOOPBACK, "localhost", "[::1]"):
        assert client_options(f"http://{host}:8000")["trust_env"] is False
    assert client_options("https://mesh.example")["trust_env"] is True


class _Requests(QuietHandler):
    """Notes what it was asked for: as a proxy its path is a whole URL."""

    asked: ClassVar[list[tuple[str, str]]]
    answers: ClassVar[dict[str, str]] = {}

    def get(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization", "")))
        self.body()
        self.answer(200 if self.path in self.answers else 404, self.answers.get(self.path, "").encode())

    post = put = get


@pytest.fixture
def listening() -> Iterator[Any]:
    with ExitStack() as stack:

        def start(answers: dict[str, str]) -> tuple[str, list[tuple[str, str]]]:
            asked: list[tuple[str, str]] = []
            handler = type("Handler", (_Requests,), {"asked": asked, "answers": answers})
            return stack.enter_context(answering(ThreadingHTTPServer((LOOPBACK, 0), handler))), asked

        yield start


async def test_ec2_is_called_through_the_proxy_with_credentials_that_come_without(
    listening: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An instance's role is its own: a proxy would ask for another's. EC2 itself is often behind the proxy alone."""
    role = "/latest/meta-data/iam/security-credentials/"
    key = f'{{"Code": "Success", "AccessKeyId": "{KEY_OF_THE_ROLE}", "SecretAccessKey": "s", "Token": "t",'
    metadata, asked = listening(
        {
            "/latest/api/token": "a-token",
            role: "worker",
            f"{role}worker": f'{key} "Expiration": "2100-01-01T00:00:00Z"}}',
        }
    )
    none = "<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>"
    proxy, through = listening({"http://ec2.example/": none})
    name_proxy(monkeypatch, proxy)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata)
    fleet = await Ec2Instances.connect(
        "mesh-a", Ec2Options("worker", endpoint_url="http://ec2.example", region="eu-west-1", attempts=1)
    )
    assert [os.environ[name] for name in ("no_proxy", "NO_PROXY")] == ["", ""], "other clients read it, too"
    assert await fleet.instances() == []
    await fleet.close()
    assert len(asked) == 3
    assert [path for path, _ in through] == ["http://ec2.example/"]
    assert KEY_OF_THE_ROLE in through[0][1]


def test_every_client_says_whether_it_obeys_proxies() -> None:
    """gRPC's channels are made in one file, and no HTTP client is made without a word about the environment's proxies."""
    places = [
        path for part in ("libs", "services", "benchmarks", "studies", "deploy") for path in (ROOT / part).rglob("*.py")
    ]
    assert len(places) > 300
    channels, silent = set(), []
    for path in places:
        if path.name.endswith("_pb2_grpc.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            called = ast.unparse(node.func)
            if called.startswith("grpc.") and called.endswith("secure_channel"):
                channels.add(path.relative_to(ROOT).as_posix())
            elif called in {f"httpx.{name}" for name in ("Client", "AsyncClient", "get", "post", "stream", "request")}:
                says = any(
                    keyword.arg == "trust_env"
                    or (keyword.arg is None and "client_options" in ast.unparse(keyword.value))
                    for keyword in node.keywords
                )
                if not says:
                    silent.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert channels == {"libs/spotwise/mesh/grpc/control_access.py"}
    assert silent == []
