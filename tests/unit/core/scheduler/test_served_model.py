"""Tests of the served model: which weights a mesh serves, and that workers with others get no requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import MemberState, Pool
from spotwise.core.messages.mesh import RejectCode
from spotwise.core.scheduler.pools import ServedModel
from spotwise.core.scheduler.role import SchedulerLimits
from tests.unit.core.builders import only, sent, worker_member
from tests.unit.core.scheduler_bench import SchedulerBench, submission


def worker(name: str, digest: str | None, since: int = 1, pool: Pool = Pool.MIXED) -> m.Member:
    return worker_member(name, pool, incarnation=since, model_digest=digest)


def test_the_longest_running_worker_decides() -> None:
    """The longest-running worker decides, in any order of heartbeats, by id if two started at once.

    Loading ones do not count.
    """
    loading = replace(worker("a", None, since=0), state=MemberState.STARTING)
    for workers in ([loading, worker("b", "B", 5), worker("c", "C", 4)], [worker("c", "C", 4), worker("b", "B", 5)]):
        served = ServedModel()
        served.decide(workers)
        assert (served.is_known, served.digest) == (True, "C")
    tied = ServedModel()
    tied.decide([worker("c", "C"), worker("b", "B")])
    assert tied.digest == "B"


def test_it_stays_decided() -> None:
    """A majority of others changes nothing, nor that none of the first are left."""
    served = ServedModel()
    served.decide([])
    assert not served.is_known
    assert served.admits(worker("b", "B"))
    served.decide([worker("a", "A", 9)])
    served.decide([worker("b", "B"), worker("c", "B")])
    assert served.digest == "A"
    assert served.admits(worker("d", "A"))
    assert not served.admits(worker("b", "B"))
    assert not served.admits(worker("s", None))


def test_workers_without_weights_are_one_model() -> None:
    """A mesh of simulated workers serves, and one with weights among them gets nothing."""
    bench = SchedulerBench(worker("s1", None), worker("s2", None), worker("real", "A", 2))
    assert {bench.placements(submission(name))[0][1] for name in "abcd"} == {"s1", "s2"}


def test_a_worker_with_other_weights_gets_no_request() -> None:
    """However idle, in whatever pool, also by its later heartbeats; it is named."""
    bench = SchedulerBench(worker("p", "A", pool=Pool.PROMPT), worker("t", "A", pool=Pool.TOKEN))
    for pool in (Pool.TOKEN, Pool.MIXED, Pool.PROMPT):
        stray = worker(f"stray-{pool}", "B", 2, pool)
        bench.feed(stray)
        bench.feed(stray)
    assert {bench.placements(submission(name))[0][1] for name in "abc"} <= {"p", "t"}
    assert [member.id for member in bench.role.pools.with_other_weights()] == [
        "stray-mixed",
        "stray-prompt",
        "stray-token",
    ]
    assert bench.role.pools.ready == 2


def test_when_only_others_are_left_the_request_is_rejected() -> None:
    bench = SchedulerBench(worker("t", "A"), worker("stray", "B", 2), limits=SchedulerLimits(max_unready_s=0.0))
    bench.feed(replace(worker("t", "A"), state=MemberState.LEFT))
    (rejection,) = only(bench.feed(submission()), m.RequestRejected)
    assert rejection.code is RejectCode.NO_WORKERS
    assert "1 have other weights than the mesh serves" in rejection.message


def test_a_worker_that_comes_back_with_other_weights_loses_its_place() -> None:
    bench = SchedulerBench(worker("t", "A"), worker("u", "A"))
    bench.feed(worker("t", "B", 2))
    assert {bench.placements(submission(name))[0][1] for name in "abc"} == {"u"}
    bench.feed(worker("t", "A", 3))
    assert "t" in {bench.placements(submission(name))[0][1] for name in "def"}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_a_new_scheduler_comes_to_the_same_model(order: tuple[int, int, int]) -> None:
    """A new scheduler reads the registrations, which have no loads, before the first heartbeat."""
    workers = [worker("old", "A", 1), worker("b", "B", 2), worker("c", "B", 3)]
    registered = [replace(workers[index], load=None) for index in order]
    bench = SchedulerBench(*registered)
    for index in reversed(order):
        bench.feed(workers[index])
    assert bench.role.pools.served_model.digest == "A"
    assert sent(bench.feed(submission()), "old")


def test_a_registration_whose_worker_is_gone_does_not_decide() -> None:
    """After a restart with another model, registrations of the old workers do not decide the served weights."""
    bench = SchedulerBench(replace(worker("old", "A", 1), load=None))
    bench.feed(worker("new", "B", 2), after_s=1.0)
    assert [member.id for member in bench.role.pools.with_other_weights()] == ["new"]
    bench.feed(m.Tick(), after_s=1.5)
    bench.feed(worker("new", "B", 2))
    assert bench.placements(submission()) == [("r", "new")]
    bench.feed(worker("old", "A", 3))
    assert bench.role.pools.served_model.digest == "B"
