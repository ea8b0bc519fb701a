"""`up --engine simulated --parallel`: groups of simulated devices, re-shaped and drained by the real planner."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotwise.core.messages.members import MemberKind
from tests.live.mesh import wait_for
from tests.live.simulated_mesh import SeededStream, SimulatedMesh

pytestmark = pytest.mark.parallel

#: They last for longer than a command takes to start, and groups to form, on a busy machine.
TOKENS = 400


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedMesh]:
    """Four groups of two devices, and two devices that wait."""
    options = ("--parallel", "4,2,1", "--devices", "10")
    with SimulatedMesh(tmp_path_factory.mktemp("simulated-groups"), *options) as mesh:
        yield mesh


def _check(mesh: SimulatedMesh, streams: list[SeededStream]) -> None:
    """Every stream got the tokens of its seed, once each, from one attempt."""
    for seed, stream in enumerate(streams):
        assert stream.tokens == mesh.tokens_of(seed, TOKENS)
    assert mesh.losses(streams) == []
    mesh.wait_until_idle()


def _devices(mesh: SimulatedMesh) -> dict[str, str]:
    """The leader of each device that is in a group."""
    members = [each.member_now for each in mesh.members()]
    return {each.id: each.leader_id for each in members if each.kind is MemberKind.DEVICE and each.place is not None}


def test_devices_of_a_group_are_members_of_few_processes(simulated: SimulatedMesh) -> None:
    members = [each.member for each in simulated.members() if each.member.kind is MemberKind.DEVICE]
    assert len(members) == 10
    assert {member.pid for member in members} == {simulated.pid("mixed-0-to-3"), simulated.pid("device-0-to-1")}
    led = _devices(simulated)
    assert led == {f"mixed-{group}-device-{number}": f"mixed-{group}" for group in range(4) for number in range(2)}


def test_groups_take_another_shape_under_streams(simulated: SimulatedMesh) -> None:
    """All requests move with their KV, by the real protocol, and no token is computed again."""

    def reshape() -> None:
        done = simulated.command("reshape", "4,1,2")
        assert done.returncode == 0, done.stdout + done.stderr

    streams = simulated.streams(range(8), TOKENS, after_tokens=2, disturb=reshape)
    _check(simulated, streams)
    for stream in streams:
        assert simulated.ledger(stream.request_id, "moved")["moved"]["kv_bytes"] > 0
    assert set(_devices(simulated).values()) == {f"mixed-c1-{number}" for number in range(4)}


def test_a_group_that_is_drained_leaves_with_its_devices(simulated: SimulatedMesh) -> None:
    """Its requests move to the others; the process and its other devices stay. This is the last test of its mesh."""
    gone = {device_id for device_id, leader_id in _devices(simulated).items() if leader_id == "mixed-c1-0"}
    pids = {simulated.pid(name) for name in ("mixed-0-to-3", "device-0-to-1")}
    streams = simulated.streams(
        range(8), TOKENS, after_tokens=2, disturb=lambda: simulated.drain("mixed-c1-0", seconds=2.0)
    )
    _check(simulated, streams)

    def left() -> bool:
        return not gone & {each.member.id for each in simulated.members()}

    wait_for(left, lambda: f"{sorted(gone)} to leave")
    assert len(gone) == 2 and len(_devices(simulated)) == 6
    assert {simulated.pid(name) for name in ("mixed-0-to-3", "device-0-to-1")} == pids
