"""Tests of access to a mesh of one machine: broker and store need a password, no port is open to other machines, the API
needs a key once there is one, and what clients send stays in no log.

The last tests make keys: from then on the API needs one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import nats
import openai
import psutil
import pytest
import redis
from nats.aio.client import Client

from spotwise.cli.launch.mesh_servers import OPERATOR, WORKER
from spotwise.mesh.redis.requests import KEPT_TTL_S
from spotwise.wire import subjects
from spotwise.wire.permissions import Principal
from spotwise.wire.roles import MeshRole
from tests.live.mesh import EXECUTED, MODEL, wait_for
from tests.live.simulated_mesh import SimulatedMesh

pytestmark = pytest.mark.parallel


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedMesh]:
    """Simulated workers that hand real bytes over, with journals."""
    home = tmp_path_factory.mktemp("doors")
    live = SimulatedMesh(
        home,
        *("--simulated-kv", "real"),
        env={"SPOTWISE_JOURNAL": str(home / "journals"), "SPOTWISE_LOG_LEVEL": "debug", **EXECUTED},
    )
    live.env.pop("UCX_NET_DEVICES", None)
    with live:
        yield live


PRINCIPALS = (OPERATOR, WORKER, Principal(MeshRole.GATEWAY, "gateway-0"), Principal(MeshRole.SCHEDULER, "scheduler-0"))


def passwords(mesh: SimulatedMesh, *principals: Principal) -> list[str]:
    """Return the passwords of principals at broker and store."""
    servers = mesh.state.servers
    assert servers is not None
    found = [urlsplit(url).password for principal in principals for url in servers.urls(principal)]
    assert all(found), "no password"
    return [str(password) for password in found]


def test_broker_and_store_want_the_password_that_up_made(mesh: SimulatedMesh) -> None:
    """Another process of this machine that knows the ports alone gets nowhere."""
    assert len(set(passwords(mesh, *PRINCIPALS))) == 2 * len(PRINCIPALS)
    port = urlsplit(mesh.state.redis_url).port
    assert port is not None
    with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.keys()

    async def connect() -> None:
        url = f"nats://127.0.0.1:{urlsplit(mesh.state.nats_url).port}"
        client = Client()
        try:
            await client.connect(url, allow_reconnect=False, connect_timeout=5, error_cb=_ignore)
        finally:
            await client.close()

    with pytest.raises(nats.errors.Error, match="Authorization"):
        asyncio.run(connect())


async def _ignore(_error: Exception) -> None:
    pass


def test_the_mesh_is_whole_with_passwords(mesh: SimulatedMesh) -> None:
    """Requests are served, KV travels, and the other commands find their way."""
    answer = mesh.client().completions.create(model=MODEL, prompt=list(range(100, 140)), max_tokens=5)
    assert mesh.ledger(answer.id, "handed_off")["handed_off"]["transport"] == "tcp/lo"
    assert mesh.command("status").returncode == 0
    assert mesh.command("explain", answer.id).returncode == 0
    assert "token-0" in mesh.command("drain", "token-9").stderr


def test_no_password_is_shown(mesh: SimulatedMesh) -> None:
    """No password is in a command line, log or output; files with passwords or clients' content are private."""
    shown = [mesh.command(*words) for words in (("status",), ("drain", "token-9"), ("explain", "no-such-request"))]
    text = "".join(done.stdout + done.stderr for done in shown)
    run = mesh.home / "run" / "default"
    logs = list((run / "logs").glob("*.log"))
    assert len(logs) >= 8
    text += "".join(path.read_text(errors="replace") for path in logs)
    for process in mesh.state.processes():
        text += " ".join(psutil.Process(process.pid).cmdline())
    servers = mesh.state.servers
    assert servers is not None
    hidden = [*passwords(mesh, *PRINCIPALS), str(servers.broker.root), str(servers.store.root)]
    assert not [password for password in hidden if password in text]
    journals = list((mesh.home / "journals").iterdir())
    assert journals
    private = [run, run / "logs", run / "state.json", run / "mesh.secret", mesh.home / "journals", *journals, *logs]
    readable = [
        str(path) for path in private if stat.S_IMODE(path.stat().st_mode) & 0o077 and path.name != "supervisor.log"
    ]
    assert not readable


def test_a_service_has_its_own_passwords_only(mesh: SimulatedMesh) -> None:
    """A gateway that is taken over has the gateway's user in its environment, and no other's."""
    process = mesh.state.services["gateway-0"].process
    assert process is not None
    text = str(psutil.Process(process.pid).environ())
    gateway = Principal(MeshRole.GATEWAY, "gateway-0")
    assert all(password in text for password in passwords(mesh, gateway))
    others = [principal for principal in PRINCIPALS if principal != gateway]
    assert not [password for password in passwords(mesh, *others) if password in text]


def test_no_port_is_open_to_other_machines(mesh: SimulatedMesh) -> None:
    """Under an address of this machine that others can reach, no process of the mesh answers."""
    outside = [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name != "lo" and address.family is socket.AF_INET
    ]
    if not outside:
        pytest.skip("this machine has no address but loopback")
    ports = {
        connection.laddr.port
        for process in mesh.state.processes()
        for connection in psutil.Process(process.pid).net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert len(ports) >= 12
    reached = []
    for address in outside:
        for port in ports:
            with socket.socket() as probe:
                probe.settimeout(1.0)
                if probe.connect_ex((address, port)) == 0:
                    reached.append((address, port))
    assert not reached


def written(mesh: SimulatedMesh) -> str:
    """All that the mesh keeps as text: logs, journals, and what is in the store, but for the bodies of requests that any
    gateway can go on with (ADR 39): those are gone soon.
    """
    logs = [path.read_text(errors="replace") for path in (mesh.home / "run" / "default" / "logs").glob("*.log")]
    journals = [gzip_text(path.read_bytes()) for path in (mesh.home / "journals").iterdir()]
    assert len(logs) >= 8 and journals
    kept: list[str] = []
    with redis.Redis.from_url(mesh.admin_redis_url) as store:
        reads: dict[bytes, Callable[[bytes], Any]] = {
            b"string": store.get,
            b"hash": store.hgetall,
            b"list": lambda key: store.lrange(key, 0, -1),
            b"zset": lambda key: store.zrange(key, 0, -1),
        }
        for key in store.scan_iter():
            kind = store.type(key)
            if key.startswith(subjects.kept_request_key("").encode()):
                assert 0 < store.ttl(key) <= KEPT_TTL_S and b"body" in store.hget(key, "form")
                continue
            kept.append(f"{key!r} {reads[kind](key)!r}" if kind in reads else f"{key!r}")
    return "\n".join((*logs, *journals, *kept))


def gzip_text(data: bytes) -> str:
    """Text of a journal, which is still being written."""
    if not data.startswith(b"\x1f\x8b"):
        return data.decode(errors="replace")
    unpacked = b""
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file, contextlib.suppress(EOFError):
        while part := file.read1():
            unpacked += part
    return unpacked.decode(errors="replace")


def test_what_clients_send_is_in_no_log(mesh: SimulatedMesh) -> None:
    """Neither prompts nor keys, whatever becomes of a request: in logs at debug level, journals, ledgers and the store."""
    prompt, key = "canary-in-the-prompt", "canary-in-the-key"
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 5}
    headers = {"Authorization": f"Bearer {key}"}
    answer = mesh.post("/v1/completions", body, headers=headers)
    mesh.ledger(answer.json()["id"])
    for wrong in (
        {"temperature": prompt},
        {"stop": [prompt] * 99},
        {"max_tokens": 10**9},
        {"prompt": [prompt, 1]},
        {prompt: prompt, "guided_json": prompt},
    ):
        assert mesh.post("/v1/completions", body | wrong, headers=headers).status_code == 400
    messages = [{"role": "user", "content": prompt}, {"role": prompt, "content": prompt}]
    assert mesh.post("/v1/chat/completions", {"model": MODEL, "messages": messages}, headers=headers).status_code == 400
    broken = httpx.post(f"{mesh.url}/v1/completions", content=f'{{"prompt": "{prompt}'.encode(), headers=headers)
    assert broken.status_code == 400
    with mesh.client().completions.create(**(body | {"max_tokens": 200}), stream=True) as stream:  # type: ignore[call-overload]
        next(iter(stream))  # and leaves
    mesh.wait_until_idle()
    text = written(mesh)
    assert answer.json()["id"] in text
    assert not [canary for canary in (prompt, key) if canary in text]


def test_from_the_first_key_on_the_api_needs_one(mesh: SimulatedMesh) -> None:
    """The key works at once, with its limits; revoked, it does not, and the API stays closed. Its secret is nowhere."""
    made = mesh.command("keys", "create", "acme", "--requests-per-minute", "2", "--json")
    secret = json.loads(made.stdout)["key"]
    request = {"model": MODEL, "prompt": "Hi", "max_tokens": 3}
    client = mesh.client().with_options(api_key=secret)
    answer = client.completions.with_raw_response.create(**request)  # type: ignore[call-overload]
    assert answer.headers["x-ratelimit-remaining-requests"] == "1"
    client.completions.create(**request)  # type: ignore[call-overload]
    with pytest.raises(openai.RateLimitError) as limited:
        client.completions.create(**request)  # type: ignore[call-overload]
    assert limited.value.code == "rate_limit_exceeded"
    assert int(limited.value.response.headers["retry-after"]) >= 1
    wait_for(lambda: mesh.get("/v1/models").status_code == 401, lambda: "an API that needs a key")
    assert mesh.get("/metrics").text.count('spotwise_rate_limited_total{limit="requests"') == 1
    assert mesh.command("keys", "revoke", "acme").returncode == 0

    def is_refused() -> bool:
        try:
            client.models.list()
        except openai.AuthenticationError:
            return True
        return False

    wait_for(is_refused, lambda: "the revoked key's end")
    assert mesh.get("/v1/models").status_code == 401
    assert secret not in written(mesh)


def test_a_store_that_lost_its_keys_gets_them_back(mesh: SimulatedMesh) -> None:
    """The embedded store keeps nothing when it dies; clients notice nothing of it."""
    secret = json.loads(mesh.command("keys", "create", "zeta", "--json").stdout)["key"]
    client = mesh.client().with_options(api_key=secret)
    assert client.models.list().data
    os.kill(mesh.pid("redis-server"), signal.SIGKILL)
    assert client.models.list().data

    def names() -> list[str]:
        listed = mesh.command("keys", "list", "--json")
        return [key["name"] for key in json.loads(listed.stdout)["keys"]] if listed.returncode == 0 else []

    wait_for(lambda: names() == ["zeta"], lambda: f"the keys in the new store: {names()}")
    assert client.models.list().data
