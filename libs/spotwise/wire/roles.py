"""Roles of processes towards broker, store and peers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from spotwise.core.messages.members import MemberKind


class MeshRole(StrEnum):
    """What a process is to broker, store and peers."""

    GATEWAY = "gateway"
    SCHEDULER = "scheduler"
    WORKER = "worker"  #: prompt and token workers, groups and devices, which share processes
    PLANNER = "planner"
    WATCHER = "watcher"
    OPERATOR = "operator"  #: the commands of `spotwise`


ROLE_OF: Mapping[MemberKind, MeshRole] = {
    MemberKind.GATEWAY: MeshRole.GATEWAY,
    MemberKind.CLUSTER_SCHEDULER: MeshRole.SCHEDULER,
    MemberKind.PROMPT_WORKER: MeshRole.WORKER,
    MemberKind.TOKEN_WORKER: MeshRole.WORKER,
    MemberKind.DEVICE: MeshRole.WORKER,
    MemberKind.MIGRATION_PLANNER: MeshRole.PLANNER,
    MemberKind.SPOT_WATCHER: MeshRole.WATCHER,
}
#: The roles of members; an operator is none.
MEMBERS = tuple(role for role in MeshRole if role is not MeshRole.OPERATOR)
