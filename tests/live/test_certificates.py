"""A whole mesh with certificates: the broker speaks TLS, and every call over gRPC is mutual TLS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from spotwise.cli.certs.folder import CredentialsFolder
from spotwise.mesh.child_process import start_child
from spotwise.mesh.control_access import ControlAccess
from spotwise.mesh.embedded import free_port, nats_answers, nats_server, redis_server, running
from spotwise.mesh.grpc_control import answers
from spotwise.mesh.plane_tls import PlaneTls
from spotwise.wire.permissions import MeshRole, Principal
from tests.live.mesh import wait_for
from tests.live.simulated_mesh import SimulatedMesh


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedMesh]:
    """A group of two devices. `up` gives all processes one URL and one certificate, which here has all roles."""
    home = tmp_path_factory.mktemp("certificates")
    credentials = CredentialsFolder(home / "mesh-certs")
    credentials.create("localhost", "localhost", 30, 300)
    credentials.issue(Principal(MeshRole.OPERATOR, "all"), tuple(MeshRole), (), 30)
    folder, port = home / "mesh-certs" / "servers" / "nats", free_port()
    tls = 'tls: { cert_file: "tls.crt", key_file: "tls.key", ca_file: "ca.crt", verify: true }'
    (folder / "test.conf").write_text(f"port: {port}\n{tls}\n")
    with ExitStack() as stack:
        argv = (nats_server(folder).argv[0], "--config", "test.conf")
        stack.callback(start_child(argv, log_path=folder / "nats.log", folder=folder).stop)
        wait_for(lambda: nats_answers(port), lambda: "the broker")
        store = stack.enter_context(running(redis_server(home / "store")))
        urls = ("--nats-url", f"tls://localhost:{port}", "--redis-url", store.url)
        env = {"SPOTWISE_TLS_DIR": str(home / "mesh-certs" / "members" / "operator.all")}
        yield stack.enter_context(SimulatedMesh(home, "--parallel", "1,1,2", *urls, env=env))


def test_a_mesh_with_certificates_serves_and_is_found_healthy(mesh: SimulatedMesh) -> None:
    """The leader orders its devices, requests are answered, and commands with a certificate see every member serve."""
    assert len(asyncio.run(mesh.answers(4, 8))) == 4
    status = mesh.command("status", "--json")
    assert status.returncode == 0, status.stdout + status.stderr
    members = json.loads(status.stdout)
    assert len(members) >= 7
    moved = mesh.command("drain", "token-9")
    assert "mixed-0" in moved.stderr, "the watcher's reply lists the workers"


def test_without_a_certificate_no_endpoint_answers(mesh: SimulatedMesh) -> None:
    """Neither a stranger's health check nor a command without certificates gets an answer over gRPC or from the broker."""
    members = json.loads(mesh.command("status", "--json").stdout)
    addresses = {str(member["grpc_address"]) for member in members}
    certified = ControlAccess(PlaneTls(mesh.home / "mesh-certs" / "members" / "operator"))

    async def ask() -> None:
        for address in addresses:
            assert await answers(address, access=certified)
            assert not await answers(address, timeout_s=1.0)

    asyncio.run(ask())
    del mesh.env["SPOTWISE_TLS_DIR"]
    try:
        refused = mesh.command("drain", "token-9")
    finally:
        mesh.env["SPOTWISE_TLS_DIR"] = str(mesh.home / "mesh-certs" / "members" / "operator.all")
    assert refused.returncode != 0
    assert "no NATS server answers" in refused.stderr
