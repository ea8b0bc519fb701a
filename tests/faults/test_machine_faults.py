"""Faults of the machine under a mesh: clocks that jump, of one process and of all, and a full disk.

A mesh of simulated workers, as in test_request_faults.py. A memory limit has no cells of its own: a process beyond its control
group's is killed, and one that gets no more is there ("no more memory").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faults import jumping_clock, small_disk
from tests.faults.disturbances import Disturbance
from tests.faults.fault_mesh import FaultMesh
from tests.faults.jumping_clock import JumpingClocks
from tests.faults.request_cell import cell, disturbed
from tests.faults.request_matrix import MatrixRow
from tests.faults.test_request_faults import PROCESSES

pytestmark = pytest.mark.timeout(400)
_HOUR_S = 3600
JUMPS = {"an hour ahead for 5 s": _HOUR_S, "an hour back for 5 s": -_HOUR_S}
#: nats-server does not read its clock through libc.
CLOCKS = tuple(each for each in PROCESSES if each != "nats-server")


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> JumpingClocks:
    if reason := jumping_clock.why_impossible():
        pytest.skip(f"no clock can jump here: {reason}")
    return JumpingClocks(tmp_path_factory.mktemp("clocks"))


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory, clocks: JumpingClocks) -> Iterator[FaultMesh]:
    """All jumps happen to one mesh, which has to be whole after each."""
    with FaultMesh(tmp_path_factory.mktemp("jumps"), env=clocks.env) as live:
        yield live


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if reason := small_disk.why_impossible():
        pytest.skip(f"no file system can be mounted here: {reason}")
    folder = tmp_path_factory.mktemp("disk")
    with small_disk.small_disk(folder):
        yield folder


@pytest.mark.parametrize("name", JUMPS)
@pytest.mark.parametrize(
    "victims", [*((each,) for each in CLOCKS), CLOCKS], ids=lambda each: each[0] if len(each) == 1 else "all"
)
def test_a_clock_jumps(
    mesh: FaultMesh,
    clocks: JumpingClocks,
    record_row: Callable[[MatrixRow], None],
    victims: tuple[str, ...],
    name: str,
) -> None:
    """Nothing accepted is lost, doubled or wrong, and no deadline comes early."""
    assert all(clocks.can_jump(mesh.pid(victim)) for victim in victims)
    row = disturbed(mesh, Disturbance(name, clocks.jump(JUMPS[name], 5.0)), victims)
    record_row(row)
    assert row.is_clean, row


def test_the_disk_is_full(disk: Path, record_row: Callable[[MatrixRow], None]) -> None:
    """Logs and the state of the run are not written meanwhile, which costs no request anything."""
    with FaultMesh(disk) as live:
        row = cell(live, "no room for 10 s", "disk", partial(small_disk.fill_for, disk, 10.0))
    record_row(row)
    assert row.is_clean, row
