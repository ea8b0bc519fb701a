"""What the members of a mesh say of themselves."""

from __future__ import annotations

import asyncio
import dataclasses

from spotwise.cli.mesh_access import open_store, operator_access
from spotwise.core.messages.members import Member, MemberKind, Pool
from spotwise.core.scheduler.views import has_off_pool_work
from spotwise.mesh.grpc.control import EngineDescription, describe_engine, is_serving
from spotwise.mesh.grpc.control_access import ControlAccess
from spotwise.mesh.ports.ports import MeshError

WORKERS = (MemberKind.PROMPT_WORKER, MemberKind.TOKEN_WORKER)


@dataclasses.dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member: its registration, its health check's answer, and its description of itself."""

    member: Member
    serving: bool
    engine: EngineDescription | None

    @property
    def member_now(self) -> Member:
        """The member's latest record."""
        return self.engine.member if self.engine else self.member

    @property
    def pool_now(self) -> Pool | None:
        """The worker's current pool: its home pool, or the mixed pool while it runs off-pool work."""
        member = self.member_now
        away = member.load is not None and has_off_pool_work(member.pool, member.load)
        return Pool.MIXED if away else member.pool


async def gather_status(redis_url: str) -> list[MemberStatus]:
    """Query every registered member's status; raises `CommandError` where the store does not answer."""
    async with open_store(redis_url) as store:
        members = await store.members()
    access = operator_access()
    return list(await asyncio.gather(*(_query(member, access) for member in members)))


async def _query(member: Member, access: ControlAccess) -> MemberStatus:
    serving = await is_serving(member.grpc_address, access=access)
    engine = None
    if serving and member.kind in (*WORKERS, MemberKind.DEVICE):
        try:
            engine = await describe_engine(member.grpc_address, member.id, access=access)
        except MeshError:
            serving = False
    return MemberStatus(member, serving, engine)


def missing_services(members: list[MemberStatus]) -> list[str]:
    """Say which services are missing that every request needs."""
    present = {status_.member.kind for status_ in members}
    missing = {
        "gateway": MemberKind.GATEWAY not in present,
        "scheduler": MemberKind.CLUSTER_SCHEDULER not in present,
        "worker": not present.intersection(WORKERS),
    }
    return [f"no {what} is in the mesh: no request is served" for what, is_missing in missing.items() if is_missing]


def with_other_weights(members: list[MemberStatus]) -> set[str]:
    """Return the ids of workers whose weights are not those that the mesh serves."""
    served = {s.member.model_digest for s in members if s.member.kind is MemberKind.CLUSTER_SCHEDULER} - {None}
    workers = [s.member_now for s in members if s.engine is not None and s.member.kind in WORKERS]
    return {worker.id for worker in workers if served and worker.model_digest not in served}
