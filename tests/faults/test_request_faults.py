"""Each kind of fault in each process of a mesh, while requests are in every phase: every client gets its tokens, each once.

A simulated mesh: all services, broker and store are real, and tokens are known beforehand. What a request was refused before it
was accepted, its client sends again; what was accepted ends as it should.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.bad_links import why_impossible
from tests.faults.disturbances import DISTURBANCES, Disturbance
from tests.faults.fault_mesh import FaultMesh
from tests.faults.request_cell import disturbed
from tests.faults.request_matrix import MatrixRow

#: Of schedulers and planners, those that began first: they act, until a fault before this one has changed that.
_CONTROL = ("gateway-0", "scheduler-0", "scheduler-1", "planner-0", "watcher-0")
_SERVERS = ("nats-server", "redis-server")
PROCESSES = (*sorted(FaultMesh.WORKERS), *_CONTROL, *_SERVERS)
#: A worker that ends in order has drained, and stays away: tests/live/test_drains.py.
CELLS = [
    (disturbance, victim)
    for disturbance in DISTURBANCES
    for victim in PROCESSES
    if not (disturbance.drains_workers and victim in FaultMesh.WORKERS)
]
#: A process that stands still for long, and a machine that is slow to start another one.
pytestmark = pytest.mark.timeout(400)
#: Two at once: what either would have repaired.
PAIRS = [(one, other) for at, one in enumerate(PROCESSES) for other in PROCESSES[at + 1 :]]
#: A stream's tokens are with its gateway and in the store, and the embedded store keeps nothing when it dies.
BOTH_COPIES = ("gateway-0", "redis-server")


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultMesh]:
    """All cells happen to one mesh, which has to be whole after each."""
    with FaultMesh(tmp_path_factory.mktemp("faults")) as live:
        yield live


@pytest.fixture(scope="module")
def impossible() -> str | None:
    """Why links cannot be bad here."""
    return why_impossible()


@pytest.mark.parametrize(("disturbance", "victim"), CELLS, ids=lambda each: getattr(each, "name", each))
def test_one_process(
    mesh: FaultMesh,
    impossible: str | None,
    record_row: Callable[[MatrixRow], None],
    disturbance: Disturbance,
    victim: str,
) -> None:
    """Nothing accepted is lost, doubled or wrong, and the mesh is whole and idle afterwards."""
    if disturbance.needs_bad_links and impossible is not None:
        pytest.skip(f"links cannot be bad here: {impossible}")
    row = disturbed(mesh, disturbance, (victim,))
    record_row(row)
    assert row.is_clean, row


@pytest.mark.parametrize("victims", PAIRS, ids=" and ".join)
def test_two_processes_are_killed_at_once(
    mesh: FaultMesh, record_row: Callable[[MatrixRow], None], victims: tuple[str, str]
) -> None:
    """The same; but where both copies are gone, a client that resumes its stream is told so, and gets nothing wrong."""
    row = disturbed(mesh, DISTURBANCES[0], victims)
    record_row(row)
    if victims == BOTH_COPIES:
        assert not (row.doubled or row.wrong) and (row.errors or not row.lost), row
    else:
        assert row.is_clean, row


def test_a_kept_store_dies_with_a_gateway(
    tmp_path: Path, record_row: Callable[[MatrixRow], None], subtests: pytest.Subtests
) -> None:
    """A store that writes an append-only file, as the shipped one does, is the second copy again once it has restarted."""
    with FaultMesh(tmp_path, "--keep-store") as mesh:
        for gateway in ("gateway-0", "gateway-1"):
            with subtests.test(gateway):
                row = disturbed(mesh, DISTURBANCES[0], (gateway, "redis-server"))
                record_row(row)
                assert row.is_clean, row
