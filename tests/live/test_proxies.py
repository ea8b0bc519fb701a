"""A mesh comes up, is seen and answers where the environment names a proxy that cannot reach it, as company machines do."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from spotwise.mesh.embedded.servers import LOOPBACK, free_port
from tests.live.simulated_mesh import SimulatedMesh

pytestmark = pytest.mark.parallel


@pytest.fixture
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedMesh]:
    """A group of two stages; every process of it knows a proxy that is not there."""
    proxy = f"http://{LOOPBACK}:{free_port()}"
    names = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
    env = {"no_proxy": "", "NO_PROXY": ""} | {name: proxy for each in names for name in (each, each.upper())}
    with SimulatedMesh(tmp_path_factory.mktemp("proxies"), "--parallel", "1,2,1", env=env) as live:
        yield live


def test_no_proxy_is_asked_for_a_member(mesh: SimulatedMesh) -> None:
    """Its group formed; `status` says of each member that it serves; `chat` has its answer."""
    shown = mesh.command("status", "--json")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    members = json.loads(shown.stdout)
    assert members
    assert [member["id"] for member in members if not member["serving"]] == []
    said = mesh.command("chat", "--max-tokens", "5", "Hello")
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.split()
