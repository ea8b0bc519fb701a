"""Tests of access to a mesh of one machine: broker and store need a password, and no port is open to other machines."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Iterator
from urllib.parse import urlsplit

import nats
import psutil
import pytest
import redis
from nats.aio.client import Client

from spotwise.cli.launch.mesh_servers import OPERATOR, WORKER
from spotwise.wire.permissions import MeshRole, Principal
from tests.live.mesh import MODEL
from tests.live.simulated_mesh import SimulatedMesh


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedMesh]:
    """Simulated workers that hand real bytes over, with journals."""
    home = tmp_path_factory.mktemp("doors")
    live = SimulatedMesh(home, "--simulated-kv", "real", env={"SPOTWISE_JOURNAL": str(home / "journals")})
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
