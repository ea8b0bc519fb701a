"""The legend below the table of `spotwise status`."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest

from spotwise.cli.mesh.status_table import MemberStatus, _legend, _row, as_dict, status_table, with_other_weights
from spotwise.core.messages.members import Member, MemberKind, MemberState, Pool, QuarantinedPair, WorkerLoad
from spotwise.mesh.grpc.control import EngineDescription


def status_of(name: str, kind: MemberKind, engine: str | None) -> MemberStatus:
    member = Member(name, kind, 1, MemberState.READY, "host", 1, "host:1")
    return MemberStatus(member, True, EngineDescription(member, 0, 0, 0, engine, 4) if engine else None)


def test_workers_that_compute_alike_are_named_together() -> None:
    """One line per kind of worker, so that one without kernels is visible; members that compute nothing have none."""
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


def test_why_a_group_computes_nothing_is_shown() -> None:
    """Its worker says so itself; one that has nothing to say has no line."""
    status = status_of("mixed-0", MemberKind.TOKEN_WORKER, None)
    shown = dataclasses.replace(status, member=dataclasses.replace(status.member, trouble="its group cannot be formed"))
    assert "mixed-0: its group cannot be formed" in _legend([shown])
    assert not any(line.startswith("mixed-0") for line in _legend([status]))


def test_which_scheduler_and_planner_act_is_shown_with_their_terms() -> None:
    """Of the others each stands by; members of other services do neither."""
    active = status_of("scheduler-1", MemberKind.CLUSTER_SCHEDULER, None)
    active = dataclasses.replace(active, member=dataclasses.replace(active.member, term=1712))
    assert _row(active)[3].endswith("ready (active, term 1712)")
    assert _row(status_of("planner-0", MemberKind.MIGRATION_PLANNER, None))[3].endswith("ready (standby)")
    assert _row(status_of("gateway-0", MemberKind.GATEWAY, None))[3].endswith("ready")


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
    member = Member("w", MemberKind.TOKEN_WORKER, 1, MemberState.READY, "host", 1, "host:1", home, load=load)
    status = MemberStatus(member, True, EngineDescription(member, 0, 0, 0, "an engine", 4))
    assert _row(status)[2] == shown
    assert any(line.startswith("pool:") for line in _legend([status])) == ("(" in shown)
    assert as_dict(status)["pool_now"] == ("mixed" if "mixed" in shown else shown)


def test_pairs_without_hand_offs_are_named() -> None:
    """Below the table, each pair with its cause and duration; in JSON as the scheduler reports it."""
    pair = QuarantinedPair("p", "t", 3, time.time() + 20.4)
    member = Member("s", MemberKind.CLUSTER_SCHEDULER, 1, MemberState.READY, "host", 1, "host:1", quarantined=(pair,))
    status = MemberStatus(member, True, None)
    assert "hand-offs from p to t failed for 3 requests; none for 20 s more" in _legend([status])
    assert as_dict(status)["quarantined"] == (
        {"prompt_worker": "p", "token_worker": "t", "failures": 3, "until_s": pair.until_s},
    )


def worker_with(load: WorkerLoad) -> MemberStatus:
    member = Member("w", MemberKind.TOKEN_WORKER, 1, MemberState.READY, "host", 1, "host:1", Pool.TOKEN, load=load)
    return MemberStatus(member, True, EngineDescription(member, 0, 0, 0, "an engine", 4))


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
    swapping, idle = worker_with(load), worker_with(WorkerLoad(kv_blocks_total=10))
    assert _row(swapping, swaps=True)[8:10] == ["9 of 10 (90%)", "10 of 40 (25%), 3 seqs"]
    assert _row(idle, swaps=True)[8:10] == ["0 of 10 (0%)", ""]
    assert _row(idle)[8] == "0 of 10 (0%)" and len(_row(idle)) == 10
    assert _legend([swapping])[1] == "w: 2 preempted, 1,200 KV blocks swapped out, 1,190 in since its start"
    assert _legend([idle])[1:] == ["w: an engine"]
    headings = [column.header for column in status_table([swapping, idle]).columns]
    assert len(headings) == 11 and "KV blocks on host" in headings
    assert "KV blocks on host" not in [column.header for column in status_table([idle]).columns]


def test_a_worker_with_other_weights_is_shown_as_such() -> None:
    def member(name: str, kind: MemberKind, digest: str | None) -> MemberStatus:
        status = status_of(name, kind, None if kind is MemberKind.CLUSTER_SCHEDULER else "an engine")
        reported = dataclasses.replace(status.member, model_digest=digest)
        engine = None if status.engine is None else dataclasses.replace(status.engine, member=reported)
        return MemberStatus(reported, True, engine)

    workers = [member("token-0", MemberKind.TOKEN_WORKER, "A"), member("stray", MemberKind.TOKEN_WORKER, "B")]
    for served, strays in (("A", {"stray"}), (None, set())):
        members = [member("scheduler-0", MemberKind.CLUSTER_SCHEDULER, served), *workers]
        assert with_other_weights(members) == strays
        health = {
            str(name): str(text) for name, text in zip(*(column.cells for column in _columns(members)), strict=True)
        }
        assert ("other weights" in health["stray"]) == bool(strays)
        assert "ready" in health["token-0"]


def _columns(members: list[MemberStatus]) -> tuple[Any, Any]:
    table = status_table(members)
    return table.columns[0], table.columns[3]
