"""`spotwise status`: the legend below its table, what is missing, and how full the store is."""

from __future__ import annotations

import time
from typing import Any

import pytest

from spotwise.cli.launch.supervision.run_state import RecordedService, ServiceState
from spotwise.cli.mesh.status_table import (
    MemberStatus,
    _legend,
    _row,
    as_dict,
    missing_services,
    status_table,
    store_problems,
    use_line,
    with_other_weights,
)
from spotwise.cli.status import _unhealthy
from spotwise.core.access.store_budget import FULL_FOR_S, Kind, RoomUse
from spotwise.core.messages.members import (
    Member,
    MemberKind,
    MemberState,
    Pool,
    ProcessCores,
    QuarantinedPair,
    WorkerLoad,
)
from spotwise.core.messages.numerics import Numerics
from spotwise.mesh.grpc.control import EngineDescription
from tests.unit.cli.builders import run_state


def status_of(
    name: str, kind: MemberKind = MemberKind.TOKEN_WORKER, engine: str | None = None, **fields: Any
) -> MemberStatus:
    """A member that is ready, with these fields."""
    member = Member(
        name, kind, 1, **{"state": MemberState.READY, "host": "host", "pid": 1, "grpc_address": "host:1", **fields}
    )
    return MemberStatus(member, True, EngineDescription(member, 0, 0, 0, engine, 4) if engine else None)


def test_workers_that_compute_alike_are_named_together() -> None:
    """One line per kind of worker, so that one without kernels is visible; members that compute nothing have none."""
    native = "bfloat16 on cpu, native avx2, 30 fused layers"
    members = [
        status_of("token-1", MemberKind.TOKEN_WORKER, native),
        status_of("gateway-0", MemberKind.GATEWAY),
        status_of("token-0", MemberKind.TOKEN_WORKER, "bfloat16 on cpu, no native kernels"),
        status_of("prompt-0", MemberKind.PROMPT_WORKER, native),
    ]
    assert _legend(members)[1:] == [
        f"prompt-0, token-1: {native}",
        "token-0: bfloat16 on cpu, no native kernels",
    ]
    assert len(_legend([])) == 1


def test_where_workers_compute_is_shown() -> None:
    """One line for those of the same cores and threads; others have none. In JSON as the member reports it."""
    shared, own = ProcessCores((0,), "0-1", 2), ProcessCores((0, 1), "0-31,64", 16, is_pinned=True)
    members = [
        status_of("token-0", cores=shared),
        status_of("prompt-0", MemberKind.PROMPT_WORKER, cores=shared),
        status_of("mixed-0-device-0", MemberKind.DEVICE, cores=own),
        status_of("other", cores=ProcessCores((1,), "3", 1)),
        status_of("unset", cores=ProcessCores((1,), "3")),
        status_of("gateway-0", MemberKind.GATEWAY),
    ]
    assert _legend(members)[1:] == [
        "mixed-0-device-0: 16 threads, each on a core of its own, on cores 0-31,64 of nodes 0-1",
        "other: 1 thread on cores 3 of node 1",
        "prompt-0, token-0: 2 threads on cores 0-1 of node 0",
        "unset: as many threads as the library chooses on cores 3 of node 1",
    ]
    assert as_dict(members[0])["cores"] == {"nodes": (0,), "cpus": "0-1", "threads": 2, "is_pinned": False}


def test_each_numerics_class_has_a_line_with_its_workers() -> None:
    """Also a mesh's only one; what computes nothing has none."""
    dot, fma = Numerics("bfloat16", "dot", "k"), Numerics("float32", "fma", "k")
    members = [status_of(name, numerics=each) for name, each in (("b", fma), ("c", dot), ("a", dot))]
    plain = [status_of("s"), status_of("d", MemberKind.DEVICE, numerics=dot)]
    lines = [line for line in _legend([*members, *plain]) if line.startswith("numerics class")]
    assert lines == [f"numerics class {dot.name}: a, c", f"numerics class {fma.name}: b"]


def test_why_a_group_computes_nothing_is_shown() -> None:
    """Its worker says so itself; one that has nothing to say has no line."""
    troubled = status_of("mixed-0", trouble="its group cannot be formed")
    assert "mixed-0: its group cannot be formed" in _legend([troubled])
    assert not any(line.startswith("mixed-0") for line in _legend([status_of("mixed-0")]))


def test_which_scheduler_and_planner_act_is_shown_with_their_terms() -> None:
    """Of the others each stands by; members of other services do neither."""
    active = status_of("scheduler-1", MemberKind.CLUSTER_SCHEDULER, term=1712)
    assert _row(active)[3].endswith("ready (active, term 1712)")
    assert _row(status_of("planner-0", MemberKind.MIGRATION_PLANNER))[3].endswith("ready (standby)")
    assert _row(status_of("gateway-0", MemberKind.GATEWAY))[3].endswith("ready")


@pytest.mark.parametrize(
    ("home", "load", "shown"),
    [
        (Pool.TOKEN, WorkerLoad(decoding=3, kv_blocks_total=9), "token"),
        (Pool.TOKEN, WorkerLoad(prompts_in_place=1, kv_blocks_total=9), "token (mixed)"),
        (Pool.PROMPT, WorkerLoad(decoding=1, kv_blocks_total=9), "prompt (mixed)"),
        (Pool.MIXED, WorkerLoad(decoding=1, kv_blocks_total=9), "mixed"),
    ],
)
def test_a_worker_away_from_home_is_shown_with_both_pools(home: Pool, load: WorkerLoad, shown: str) -> None:
    status = status_of("w", engine="an engine", pool=home, load=load)
    assert _row(status)[2] == shown
    assert any(line.startswith("pool:") for line in _legend([status])) == ("(" in shown)
    assert as_dict(status)["pool_now"] == ("mixed" if "mixed" in shown else shown)


def test_pairs_without_hand_offs_are_named() -> None:
    """Below the table, each pair with its cause and duration; in JSON as the scheduler reports it."""
    pair = QuarantinedPair("p", "t", 3, time.time() + 20.4)
    status = status_of("s", MemberKind.CLUSTER_SCHEDULER, quarantined=(pair,))
    assert "hand-offs from p to t failed for 3 requests; none for 20 s more" in _legend([status])
    assert as_dict(status)["quarantined"] == (
        {"prompt_worker": "p", "token_worker": "t", "failures": 3, "until_s": pair.until_s},
    )


def test_kv_on_the_host_is_shown_where_a_worker_swaps() -> None:
    """A column for all workers, empty for those without; swaps and preemptions are below the table, if there were any."""
    load = WorkerLoad(
        kv_blocks_total=10,
        kv_blocks_used=9,
        swapped=3,
        kv_host_blocks_total=40,
        kv_host_blocks_free=30,
        kv_blocks_swapped_out=1200,
        kv_blocks_swapped_in=1190,
        preemptions=2,
    )
    swapping, idle = (
        status_of("w", engine="an engine", pool=Pool.TOKEN, load=each)
        for each in (load, WorkerLoad(kv_blocks_total=10))
    )
    assert _row(swapping, swaps=True)[8:10] == ["9 of 10 (90%)", "10 of 40 (25%), 3 seqs"]
    assert _row(idle, swaps=True)[8:10] == ["0 of 10 (0%)", ""]
    assert _row(idle)[8] == "0 of 10 (0%)" and len(_row(idle)) == 10
    assert _legend([swapping])[1] == "w: 2 preempted, 1,200 KV blocks swapped out, 1,190 in since its start"
    assert _legend([idle])[1:] == ["w: an engine"]
    headings = [column.header for column in status_table([swapping, idle]).columns]
    assert len(headings) == 11 and "KV blocks on host" in headings
    assert "KV blocks on host" not in [column.header for column in status_table([idle]).columns]


def test_a_worker_with_other_weights_is_shown_as_such() -> None:
    workers = [status_of(name, engine="e", model_digest=digest) for name, digest in (("token-0", "A"), ("stray", "B"))]
    for served, strays in (("A", {"stray"}), (None, set())):
        members = [status_of("scheduler-0", MemberKind.CLUSTER_SCHEDULER, model_digest=served), *workers]
        assert with_other_weights(members) == strays
        columns = status_table(members).columns
        health = {str(name): str(text) for name, text in zip(columns[0].cells, columns[3].cells, strict=True)}
        assert ("other weights" in health["stray"]) == bool(strays)
        assert "ready" in health["token-0"]


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
    state = run_state(
        services={
            "planner-0": RecordedService(state=ServiceState.RESTARTING, restarts=6),
            "token-0": RecordedService(state=ServiceState.LEFT),
            "prompt-0": RecordedService(state=ServiceState.HEALTHY),
        },
    )
    assert _unhealthy(state) == ["planner-0 is restarting, after 6 restarts"]


NOW_S = 1_700_000_000.0
USES = {Kind.LEDGERS: RoomUse(3 << 19, 2 << 20), Kind.REQUESTS: RoomUse(0, 1 << 30), Kind.RESPONSES: RoomUse()}


def test_what_is_kept_is_shown_beside_its_room() -> None:
    assert use_line(USES) == "kept in the store, MiB: ledgers 1.5 of 2.0, requests 0.0 of 1,024.0"
    assert use_line({Kind.RESPONSES: RoomUse()}) == "kept in the store, MiB: nothing"


def test_a_store_that_was_full_of_late_is_a_problem() -> None:
    assert store_problems(USES, NOW_S) == []
    full = {**USES, Kind.REQUESTS: RoomUse(9, 9, NOW_S), Kind.RECORDS: RoomUse(9, 9, NOW_S - FULL_FOR_S)}
    (problem,) = store_problems(full, NOW_S + 1)
    assert "requests make room" in problem
    assert "maxmemory" in problem
    assert store_problems(full, NOW_S + FULL_FOR_S) == []
