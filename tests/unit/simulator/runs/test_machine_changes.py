"""Machines that come and go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.messages.members import Pool
from spotwise.files.spot_traces import SpotEvent, SpotEventKind, SpotTrace
from spotwise.simulator.loads.workload import ClusterWorkload
from spotwise.simulator.runs.cluster_scenario import ClusterScenario
from spotwise.simulator.runs.experiment import simulate
from spotwise.simulator.runs.machine_changes import MachineChange, MachineChangeKind, MachineLife, changes_of, lives_of
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.runs.serving_policy import ServingPolicy
from tests.unit.simulator.runs.own_clusters import FAST, SLOW, cluster

NOTICE, FAIL, JOIN = MachineChangeKind
CLUSTER = cluster((FAST, 1, Pool.MIXED), (SLOW, 3, Pool.MIXED))


def there(lives: list[MachineLife], at_s: float) -> int:
    """How many machines are there at a time, under notice or not."""
    return sum(life.from_s <= at_s and (life.gone_s is None or life.gone_s > at_s) for life in lives)


def test_the_last_machines_of_a_kind_leave_first() -> None:
    """Those under notice are not chosen again, and new ones are of the last group."""
    lives = lives_of(
        CLUSTER,
        (
            MachineChange(5.0, JOIN, 1),
            MachineChange(1.0, NOTICE, 1, "slow", 10.0),
            MachineChange(2.0, FAIL, 1, "slow"),
            MachineChange(6.0, FAIL, 1),
        ),
    )
    assert [(life.machine_id, life.group, life.from_s, life.noticed_s, life.gone_s) for life in lives] == [
        ("m0", 0, 0.0, None, None),
        ("m1", 1, 0.0, None, None),
        ("m2", 1, 0.0, 2.0, 2.0),
        ("m3", 1, 0.0, 1.0, 11.0),
        ("n4", 1, 5.0, 6.0, 6.0),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([MachineChange(1.0, FAIL, 5)], "5 machines leave at 1 s, and 4 are there"),
        ([MachineChange(1.0, FAIL, 2, "fast")], "2 machines of fast leave at 1 s, and 1 are there"),
        ([MachineChange(1.0, FAIL, 4)], "all 4 machines leave"),
        ([MachineChange(1.0, JOIN, 1, "faster")], "no machines are named 'faster'; there are fast, slow"),
    ],
)
def test_what_cannot_happen_is_refused(changes: list[MachineChange], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lives_of(CLUSTER, changes)


def test_a_notice_needs_links_for_kv_that_moves() -> None:
    unlinked = replace(FAST, profile=replace(FAST.profile, link=None))
    own = cluster((unlinked, 2, Pool.MIXED))
    assert len(lives_of(own, [MachineChange(1.0, FAIL, 1)])) == 2
    with pytest.raises(ValueError, match="has no link"):
        lives_of(own, [MachineChange(1.0, NOTICE, 1)])


@st.composite
def recordings(draw: st.DrawFn) -> SpotTrace:
    """Nodes that come and go, at least one of which is there at 0 s."""
    events = [SpotEvent(0.0, SpotEventKind.ADD, ("a", "b"))]
    here, made = ["a", "b"], 2
    for gap_s in draw(st.lists(st.floats(0.5, 50.0), max_size=8)):
        at_s = events[-1].time_s + gap_s
        leaves, notice_s = draw(st.tuples(st.booleans(), st.sampled_from([None, 0.0, 5.0, 500.0])))
        if here and leaves:
            events.append(SpotEvent(at_s, SpotEventKind.REMOVE, (here.pop(0),), notice_s=notice_s))
        else:
            here.append(f"n{made}")
            events.append(SpotEvent(at_s, SpotEventKind.ADD, (here[-1],)))
            made += 1
    return SpotTrace("drawn", tuple(events))


@given(recordings(), st.sampled_from([0.0, 20.0]))
def test_as_many_machines_are_there_as_in_a_recording(trace: SpotTrace, notice_s: float) -> None:
    first, changes = changes_of(trace, "slow", notice_s)
    lives = lives_of(cluster((FAST, 1, Pool.MIXED), (SLOW, first, Pool.MIXED)), changes)
    for at_s, count in trace.counts():
        assert there(lives, at_s + 1e-6) == 1 + count
    for life in lives:
        if life.noticed_s is not None and life.gone_s is not None:
            assert life.from_s <= life.noticed_s <= life.gone_s + 1e-9


def run(*changes: MachineChange, rate: float = 20.0) -> RunSummary:
    """Serve conversations on two fast machines, of which some come and go."""
    own = ClusterScenario(cluster((FAST, 2, Pool.MIXED)), changes=changes)
    return simulate(own.case(ClusterWorkload("conv"), rate, 20.0))


def test_requests_outlive_their_machines() -> None:
    """A machine that fails has its requests computed again, those of one under notice move; what is paid is the time in which
    machines are there.
    """
    steady, failing, noticed = (
        run(),
        run(MachineChange(10.0, FAIL, 1)),
        run(MachineChange(10.0, NOTICE, 1, notice_s=1.0)),
    )
    assert (noticed.completed, noticed.failed, noticed.moved > 0, noticed.recomputed) == (steady.completed, 0, True, 0)
    assert (failing.completed, failing.failed) == (steady.completed, 0)
    assert (failing.joined, failing.left, failing.recomputed > 0, failing.moved) == (0, 1, True, 0)
    assert failing.latencies_s["e2e"]["p99"] > steady.latencies_s["e2e"]["p99"]
    assert failing.spent_usd == pytest.approx(3.0 * (failing.ended_s + 10.0) / 3600)
    assert failing.dollars_per_1000_requests == pytest.approx(1000 * failing.spent_usd / failing.completed)
    with pytest.raises(ValueError, match="at least one must stay"):
        run(MachineChange(10.0, NOTICE, 2, notice_s=1.0))


def test_prompts_begin_again_where_their_machine_failed() -> None:
    """Those that were queued or computed there; none of them had made a token."""
    split = cluster((SLOW, 2, Pool.PROMPT), (FAST, 1, Pool.TOKEN))
    policy = ServingPolicy(break_even=False)
    failing = ClusterScenario(split, policy, changes=(MachineChange(3.0, FAIL, 1, "slow"),))
    run = simulate(failing.case(ClusterWorkload("conv"), 30.0, 6.0))
    assert (run.failed, run.left, run.recomputed) == (0, 1, 0)
    assert run.restarted > 0
    assert run.completed == simulate(ClusterScenario(split, policy).case(ClusterWorkload("conv"), 30.0, 6.0)).completed


def test_machines_that_join_serve() -> None:
    changes = MachineChange(2.0, JOIN, 2), MachineChange(3.0, JOIN, 1, for_s=5.0, notice_s=2.0)
    steady, joined = run(rate=60.0), run(*changes, rate=60.0)
    assert (joined.completed, joined.failed, joined.joined, joined.left) == (steady.completed, 0, 3, 1)
    assert joined.latencies_s["e2e"]["mean"] < steady.latencies_s["e2e"]["mean"]
    assert joined.pools["mixed"].machines == 2
    assert 0 < joined.pools["mixed"].utilisation <= 1


def test_requests_wait_where_no_machine_is_there() -> None:
    """All fail, and others come later: what arrived meanwhile is served then."""
    gap = run(MachineChange(5.0, FAIL, 2), MachineChange(8.0, JOIN, 2))
    assert (gap.completed, gap.failed) == (run().completed, 0)
    assert gap.latencies_s["ttft"]["p99"] > 1.0
