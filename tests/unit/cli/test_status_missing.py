"""Missing members in `spotwise status`."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwise.cli.launch.options import MeshOptions
from spotwise.cli.launch.supervision.run_state import RecordedService, RunState, ServiceState
from spotwise.cli.mesh.status_table import MemberStatus, missing_services
from spotwise.cli.status import _unhealthy
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.mesh.embedded.child_process import ProcessIdentity

NEEDED = (MemberKind.GATEWAY, MemberKind.CLUSTER_SCHEDULER, MemberKind.TOKEN_WORKER)


def member(kind: MemberKind) -> MemberStatus:
    return MemberStatus(Member(f"{kind.value}-0", kind, 1, MemberState.READY, "h", 1, "h:1"), True, None)


def test_a_mesh_with_any_worker_is_whole() -> None:
    assert missing_services([member(kind) for kind in NEEDED]) == []
    assert missing_services([member(kind) for kind in (*NEEDED[:2], MemberKind.PROMPT_WORKER)]) == []


@pytest.mark.parametrize(("absent", "word"), [*zip(NEEDED, ("gateway", "scheduler", "worker"), strict=True)])
def test_what_nothing_is_served_without_is_named(absent: MemberKind, word: str) -> None:
    assert missing_services([member(kind) for kind in NEEDED if kind is not absent]) == [
        f"no {word} is in the mesh: no request is served"
    ]


def test_a_process_that_its_supervisor_waits_for_is_named() -> None:
    """One that left was drained, and is not missed."""
    state = RunState(
        supervisor=ProcessIdentity(1, 1),
        ready=True,
        options=MeshOptions(name="default", model_folder=Path("/m"), model_name="m"),
        nats_url="",
        redis_url="",
        started_unix_s=0.0,
        services={
            "planner-0": RecordedService(state=ServiceState.RESTARTING, restarts=6),
            "token-0": RecordedService(state=ServiceState.LEFT),
            "prompt-0": RecordedService(state=ServiceState.HEALTHY),
        },
    )
    assert _unhealthy(state) == ["planner-0 is restarting, after 6 restarts"]
