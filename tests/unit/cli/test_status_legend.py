"""What `spotwise status` says below its table."""

from __future__ import annotations

from spotwise.cli.status import MemberStatus, _legend
from spotwise.core.messages import Member, MemberKind, MemberState
from spotwise.mesh.grpc_control import EngineDescription


def status_of(name: str, kind: MemberKind, engine: str | None) -> MemberStatus:
    member = Member(name, kind, 1, MemberState.READY, "host", 1, "host:1")
    return MemberStatus(member, True, EngineDescription(member, 0, 0, 0, engine) if engine else None)


def test_workers_that_compute_alike_are_named_together() -> None:
    """One line for each kind, so that a worker without kernels stands out; nothing for members that compute nothing."""
    native = "bfloat16 on cpu, native avx2, 30 fused layers"
    members = [
        status_of("token-1", MemberKind.TOKEN_WORKER, native),
        status_of("gateway-0", MemberKind.GATEWAY, None),
        status_of("token-0", MemberKind.TOKEN_WORKER, "bfloat16 on cpu, no native kernels"),
        status_of("prompt-0", MemberKind.PROMPT_WORKER, native),
    ]
    assert _legend(members)[1:] == [
        f"prompt-0, token-1: {native}",
        "token-0: bfloat16 on cpu, no native kernels",
    ]
    assert len(_legend([])) == 1
