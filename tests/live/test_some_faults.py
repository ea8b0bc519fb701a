"""A short cut of `make test-faults`: a few of its cells, each with requests in every phase."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.disturbances import DISTURBANCES
from tests.faults.fault_mesh import FaultMesh
from tests.faults.request_cell import disturbed

pytestmark = pytest.mark.paired

_BY_NAME = {disturbance.name: disturbance for disturbance in DISTURBANCES}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultMesh]:
    """All cells happen to one mesh, whose store is there again with all it held when it has died; nothing is left of it."""
    home = tmp_path_factory.mktemp("some-faults")
    with FaultMesh(home, "--keep-store") as live:
        yield live
    assert not list(home.rglob("*.aof"))


@pytest.mark.parametrize(
    ("name", "victims"),
    [
        ("killed", ("prompt-0", "token-0")),
        ("killed", ("gateway-0", "scheduler-0")),
        ("killed", ("gateway-0", "redis-server")),
        ("ended in order", ("nats-server",)),
    ],
)
def test_nothing_accepted_is_lost_doubled_or_wrong(mesh: FaultMesh, name: str, victims: tuple[str, ...]) -> None:
    """And the mesh is whole and idle afterwards."""
    row = disturbed(mesh, _BY_NAME[name], victims)
    assert row.requests and row.tokens
    assert row.is_clean, row
