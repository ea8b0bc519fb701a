"""The table of `spotwise status`: the members' reports of themselves, and the store's use of its memory."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from spotwise.cli.mesh.access import open_store, operator_access
from spotwise.core.access.store_budget import Kind, RoomUse
from spotwise.core.messages.members import (
    DevicePlace,
    Member,
    MemberKind,
    Pool,
    ProcessCores,
    QuarantinedPair,
    WorkerLoad,
)
from spotwise.core.scheduler.views import has_off_pool_work
from spotwise.mesh.grpc.control import EngineDescription, describe_engine, is_serving
from spotwise.mesh.grpc.control_access import ControlAccess
from spotwise.mesh.ports.ports import MeshError
from spotwise.worker.topology import format_cpus

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


async def store_use(redis_url: str) -> Mapping[Kind, RoomUse]:
    """Return how full the room of each kind is; raises `CommandError` where the store does not answer."""
    async with open_store(redis_url) as store:
        return await store.room_use()


def use_line(uses: Mapping[Kind, RoomUse]) -> str:
    """Return a line that says how much is kept of what."""
    shown = [f"{kind} {_mib(use.used_bytes)} of {_mib(use.most_bytes)}" for kind, use in uses.items() if use.most_bytes]
    return f"kept in the store, MiB: {', '.join(shown) or 'nothing'}"


def store_problems(uses: Mapping[Kind, RoomUse], now_unix_s: float) -> list[str]:
    """Say where the store had no more memory of late."""
    full = {kind: use for kind, use in uses.items() if use.is_full(now_unix_s)}
    if not full:
        return []
    at = time.strftime("%H:%M:%S", time.localtime(max(use.full_unix_s for use in full.values())))
    return [
        f"the store had no more memory at {at}: {' and '.join(full)} make room for themselves, or are not kept; raise Redis' "
        "maxmemory, or lower SPOTWISE_STORE_BYTES"
    ]


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.1f}"


#: Of several of them one acts.
_ONE_ACTS = (MemberKind.CLUSTER_SCHEDULER, MemberKind.MIGRATION_PLANNER)


def status_table(members: list[MemberStatus], notes: Sequence[str] = ()) -> Table:
    """Return a row for each member, and what they have in common below, after some notes."""
    table = Table(header_style="bold", caption="\n".join([*notes, *_legend(members)]), caption_justify="left")
    places = any(status_.member_now.place is not None for status_ in members)
    for heading in ("member", "service", "pool", "health", "pid", *(["part of the model"] if places else [])):
        table.add_column(heading, no_wrap=True)
    swaps = any(_swaps(status_) for status_ in members)
    strays = with_other_weights(members)
    for heading in (
        "sequences",
        "prompt queue",
        "tokens left",
        "KV blocks used",
        *(["KV blocks on host"] if swaps else []),
        "memory",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for status_ in sorted(members, key=_place_in_table):
        table.add_row(*_row(status_, swaps=swaps, places=places, is_stray=status_.member.id in strays))
    return table


def _place_in_table(status_: MemberStatus) -> tuple[int, str, str]:
    """By kind and id; devices below their leader."""
    member = status_.member_now
    if member.kind is MemberKind.DEVICE:
        return list(MemberKind).index(MemberKind.TOKEN_WORKER), member.leader_id, member.id
    return list(MemberKind).index(member.kind), member.id, ""


def _swaps(status_: MemberStatus) -> bool:
    load = status_.member_now.load
    return load is not None and load.kv_host_blocks_total > 0


def _legend(members: list[MemberStatus]) -> list[str]:
    """Explain a column, and once for all workers with the same engine, how they compute."""
    alike: dict[str, list[str]] = {}
    for status_ in sorted(members, key=lambda s: s.member.id):
        if status_.engine is not None and status_.member.kind in WORKERS:
            alike.setdefault(status_.engine.engine, []).append(status_.member.id)
    engines = (f"{', '.join(ids)}: {engine}" for engine, ids in alike.items())
    lines = [*_classes(members), *engines, *_places(members)]
    if any(status_.pool_now is not status_.member_now.pool for status_ in members):
        lines.insert(0, "pool: home pool (current pool), where a worker holds off-pool work")
    troubles = [f"{s.member.id}: {trouble}" for s in members if (trouble := s.member_now.trouble)]
    lines = [*troubles, *(_quarantine(pair) for status_ in members for pair in status_.member_now.quarantined), *lines]
    loads = [(s.member.id, load) for s in members if (load := s.member_now.load) is not None]
    for worker_id, load in sorted(loads, key=lambda entry: entry[0], reverse=True):
        if counts := _preemption_counts(load):
            lines.insert(0, f"{worker_id}: {counts} since its start")
    return ["sequences: waiting / waiting for KV / running / moving", *lines, *_links_of_groups(members)]


def _places(members: list[MemberStatus]) -> list[str]:
    """Say where workers and devices compute, those of the same cores together."""
    alike: dict[str, list[str]] = {}
    for member in sorted((status_.member_now for status_ in members), key=lambda member: member.id):
        if (cores := member.cores) is not None:
            alike.setdefault(_place(cores), []).append(member.id)
    return [f"{', '.join(ids)}: {place}" for place, ids in alike.items()]


def _place(cores: ProcessCores) -> str:
    """Describe where a process computes."""
    several = "s" if len(cores.nodes) != 1 else ""
    threads = "as many threads as the library chooses"
    if cores.threads is not None:
        threads = f"{cores.threads} thread{'s' if cores.threads != 1 else ''}"
    pinned = ", each on a core of its own," if cores.is_pinned else ""
    return f"{threads}{pinned} on cores {cores.cpus} of node{several} {format_cpus(cores.nodes)}"


def _classes(members: list[MemberStatus]) -> list[str]:
    """Name the workers of each numerics class."""
    workers: dict[str, list[str]] = {}
    for status_ in sorted(members, key=lambda each: each.member.id):
        if status_.member.kind in WORKERS and (name := status_.member_now.numerics_class):
            workers.setdefault(name, []).append(status_.member.id)
    return [f"numerics class {name}: {', '.join(workers[name])}" for name in sorted(workers)]


def _links_of_groups(members: list[MemberStatus]) -> list[str]:
    """Say which links the processes of each group use, and for what."""
    groups: dict[str, dict[tuple[int, int], str]] = {}
    exchanges: dict[str, str] = {}
    for member, place in ((s.member_now, s.member_now.place) for s in members):
        if place is not None and member.kind is MemberKind.DEVICE and place.stages * place.shards > 1:
            exchanges[member.leader_id] = place.exchange or "shared memory"
            groups.setdefault(member.leader_id, {})[place.stage, place.shard] = member.id
    lines = []
    for leader_id, names in sorted(groups.items()):
        stages = [
            [name for (at, _), name in sorted(names.items()) if at == stage] for stage, shard in names if not shard
        ]
        links = [f"gathers among {', '.join(stage)}" for stage in stages if len(stage) > 1]
        if len(stages) > 1:
            links.append(f"activations from stage to stage of {len(stages)}")
        line = f"group of {leader_id}: {'; '.join(links)} ({exchanges[leader_id]}); orders of {leader_id} (gRPC)"
        moves_parts = exchanges[leader_id] != "simulated"
        lines.append(f"{line}; KV of hand-offs, each process its part (UCX)" if moves_parts else line)
    return lines


def _preemption_counts(load: WorkerLoad) -> str:
    """List the counts of preemptions and swaps that are not zero."""
    counts = {
        "preempted": load.preemptions,
        "KV blocks swapped out": load.kv_blocks_swapped_out,
        "in": load.kv_blocks_swapped_in,
    }
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def _quarantine(pair: QuarantinedPair) -> str:
    left_s = max(0.0, pair.until_s - time.time())
    return (
        f"hand-offs from {pair.prompt_worker} to {pair.token_worker} failed for {pair.failures:,} requests; "
        f"none for {left_s:.0f} s more"
    )


def _pool(status_: MemberStatus) -> str:
    home, now = status_.member_now.pool, status_.pool_now
    if home is None or now is None:
        return ""
    return home.value if now is home else f"{home.value} ({now.value})"


def _part(place: DevicePlace | None) -> str:
    """Describe a position: layers and KV heads, counted from 0."""
    if place is None:
        return ""
    layers, heads = (
        f"{first}-{end - 1}" if end - first > 1 else f"{first}" for first, end in (place.layers, place.kv_heads)
    )
    return f"stage {place.stage}, shard {place.shard}: layers {layers}, KV heads {heads}"


def _row(status_: MemberStatus, *, swaps: bool = False, places: bool = False, is_stray: bool = False) -> list[str]:
    member = status_.member_now
    health = (
        "[red]other weights" if is_stray else f"[green]{member.state.value}" if status_.serving else "[red]not serving"
    )
    cells = [member.id, member.kind.value, _pool(status_), health + _term(member), str(member.pid)]
    if places:
        cells.append(_part(member.place))
    load = member.load
    if load is None or status_.engine is None:
        memory = "" if status_.engine is None else f"{status_.engine.resident_bytes / 2**20:,.0f} MiB"
        return [*cells, *[""] * (4 + swaps), memory]
    return [
        *cells,
        f"{load.waiting + load.preempted} / {load.waiting_for_kv} / {load.running} / {load.migrating}",
        f"{load.pending_prompt_tokens:,}",
        f"{load.remaining_tokens:,}",
        _share(load.kv_blocks_used, load.kv_blocks_total),
        *([_on_host(load)] if swaps else []),
        f"{status_.engine.resident_bytes / 2**20:,.0f} MiB",
    ]


def _term(member: Member) -> str:
    """Say whether a scheduler or planner acts."""
    if member.kind not in _ONE_ACTS:
        return ""
    return " (standby)" if member.term is None else f" (active, term {member.term})"


def _on_host(load: WorkerLoad) -> str:
    used = load.kv_host_blocks_total - load.kv_host_blocks_free
    return f"{_share(used, load.kv_host_blocks_total)}, {load.swapped:,} seqs" if used else ""


def _share(used: int, total: int) -> str:
    return f"{used:,} of {total:,} ({used / total:.0%})"


def as_dict(status_: MemberStatus) -> dict[str, object]:
    """Return a member as `--json` prints it."""
    engine = status_.engine
    member = status_.member_now
    now = {"serving": status_.serving, "pool_now": status_.pool_now, "numerics_class": member.numerics_class}
    fields: dict[str, Any] = {**now, **dataclasses.asdict(member)}
    if engine is not None:
        fields["engine"] = {
            "description": engine.engine,
            "sequences": engine.engine_sequences,
            "resident_bytes": engine.resident_bytes,
            "iterations": engine.iterations,
            "kv_bytes_per_token": engine.kv_bytes_per_token,
        }
    return fields
