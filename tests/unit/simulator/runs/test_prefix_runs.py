"""Runs of traces that know what prompts begin with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spotwise.core.costs.cost_profile import BUILT_IN
from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.loads.trace_files import MOONCAKE_BLOCK_TOKENS
from spotwise.simulator.loads.workload import ArrivalKind, ClusterWorkload
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.clusters import SPLITWISE_HH, Design, Split
from spotwise.simulator.runs.experiment import simulate
from spotwise.simulator.runs.machine_changes import MachineChange, MachineChangeKind
from spotwise.simulator.runs.own_machines import OwnMachine
from spotwise.simulator.runs.serving_policy import ServingPolicy

MACHINES = Design("mine", OwnMachine("mine", BUILT_IN))


def chats(folder: Path) -> Path:
    """Four conversations of five turns each; a turn is two blocks longer than the one before it."""
    lines = [
        {
            "timestamp": 2000 * turn + 100 * chat,
            "input_length": MOONCAKE_BLOCK_TOKENS * 2 * turn,
            "output_length": 20,
            "hash_ids": [100 * chat + block for block in range(2 * turn)],
        }
        for turn in range(1, 6)
        for chat in range(4)
    ]
    path = folder / "chats.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def own(folder: Path) -> Case:
    workload = ClusterWorkload("chats", chats(folder), ArrivalKind.TRACE)
    return Case(MACHINES.cluster(Split(2)), workload, None, None)


def test_what_was_computed_is_found_again(tmp_path: Path) -> None:
    """Each turn but the first finds the one before it: all but two of its blocks."""
    run = simulate(own(tmp_path))
    assert run.cached_share == pytest.approx(sum(2 * turn for turn in range(5)) / sum(2 * turn for turn in range(1, 6)))
    without = simulate(replace(own(tmp_path), prefix_caching=False))
    assert without.cached_share is None
    assert run.latencies_s["ttft"]["p90"] < 0.5 * without.latencies_s["ttft"]["p90"]
    assert run.completed == without.completed == 20


def test_requests_drawn_whole_keep_their_contents(tmp_path: Path) -> None:
    """Drawn jointly a prompt has its blocks; drawn each alone, and as the published runs were, sizes are all that is known."""
    case = replace(own(tmp_path), rate=4.0, seconds=10.0)
    workload = replace(case.workload, kind=ArrivalKind.POISSON)
    jointly = list(replace(workload, jointly=True).arrivals(4.0, 10.0, seed=0))
    drawn = {arrival.blocks for arrival in jointly if arrival.blocks is not None}
    assert len(drawn) > 5
    assert all(len(arrival.blocks.hashes) * 512 == arrival.prompt_tokens for arrival in jointly if arrival.blocks)
    assert all(arrival.blocks is None for arrival in workload.arrivals(4.0, 10.0, seed=0))
    assert simulate(replace(case, workload=replace(workload, jointly=True))).cached_share
    assert simulate(replace(case, workload=workload)).cached_share is None
    published = replace(workload, kind=ArrivalKind.PUBLISHED, jointly=True)
    assert simulate(replace(case, workload=published)).cached_share is None


def test_whole_requests_are_drawn_with_the_same_sizes(tmp_path: Path) -> None:
    """Contents change neither the times nor the sizes that a seed draws."""
    trace = chats(tmp_path)
    bare = tmp_path / "bare.jsonl"
    bare.write_text(trace.read_text().replace("hash_ids", "other"))
    jointly = ClusterWorkload("chats", trace, jointly=True)
    sizes = [(each.at_s, each.prompt_tokens, each.output_tokens) for each in jointly.arrivals(3.0, 9.0, seed=4)]
    without = replace(jointly, path=bare).arrivals(3.0, 9.0, seed=4)
    assert sizes == [(each.at_s, each.prompt_tokens, each.output_tokens) for each in without]


def test_requests_of_machines_that_leave_keep_their_contents(tmp_path: Path) -> None:
    """Whatever becomes of them; and prompts in chunks are found as whole ones are."""
    case = replace(own(tmp_path), cluster=MACHINES.cluster(Split(3)))
    for changed in (
        replace(case, changes=(MachineChange(5.0, MachineChangeKind.NOTICE, 2, notice_s=0.5),)),
        replace(case, changes=(MachineChange(5.0, MachineChangeKind.NOTICE, 2, notice_s=0.0),)),
        replace(case, policy=ServingPolicy(chunk_tokens=512)),
    ):
        run = simulate(changed)
        assert (run.completed, run.failed) == (20, 0)
        assert run.cached_share is not None
        assert 0.3 < run.cached_share < 0.7


def test_the_published_settings_have_no_prefix_cache(tmp_path: Path) -> None:
    case = replace(own(tmp_path), cluster=SPLITWISE_HH.cluster(Split(1, 1)))
    assert simulate(case).cached_share
    assert simulate(replace(case, decode_model=DecodeModel.PUBLISHED)).cached_share is None
