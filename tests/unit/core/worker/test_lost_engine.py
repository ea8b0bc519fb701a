"""A worker whose engine has lost a process gives all back and takes nothing, until the engine is whole again."""

from __future__ import annotations

import pytest

from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.requests.request import FinishReason
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import WorkerPolicy
from tests.unit.core.builders import only
from tests.unit.core.worker.bench import HERE, WorkerBench, deltas, row_of, rows

REASON = "device-1 is gone"


def lost(bench: WorkerBench) -> list[c.WorkerCommand]:
    return bench.feed(c.EngineLost(REASON))


def test_every_sequence_is_given_back_and_its_blocks_are_free() -> None:
    """Also those of an iteration in flight, of which no result is awaited; in states of all kinds."""
    bench = WorkerBench(policy=WorkerPolicy(max_in_flight=2, prefix_caching=False), blocks=40)
    bench.decode("a")
    bench.decode("b")
    bench.iterate(a=51)
    bench.prefill("p")
    bench.reserve("r")
    commands = lost(bench)
    ended = {delta.attempt_id: delta for delta in deltas(commands)}
    assert all(delta.finish_reason is FinishReason.ERROR and delta.retryable for delta in ended.values())
    assert all(REASON in delta.error for delta in ended.values())
    assert len(ended) >= 3
    assert bench.role.is_empty and bench.pool.used_blocks == 0
    assert {command.choice_id for command in only(commands, h.ForgetKv)} >= {"r"}


def test_no_iteration_in_flight_teaches_a_cost() -> None:
    """What is learned afterwards is of the iterations that were ordered afterwards, however many were in flight."""
    bench = WorkerBench(policy=WorkerPolicy(max_in_flight=2, prefix_caching=False), blocks=400)
    bench.in_place("a", prompt=600)
    bench.in_place("b", prompt=600)
    lost(bench)
    bench.feed(c.EngineRestored())
    bench.tick(after_s=60.0)
    bench.in_place("d", prompt=600)
    bench.iterate(after_s=0.5, d=50)
    assert bench.role.load().prompt_token_s == pytest.approx(0.5 / 600)


def test_nothing_runs_and_nothing_is_taken_until_it_is_whole_again(bench: WorkerBench) -> None:
    """A reservation is refused with the reason, a prompt for another worker fails retryably, one for here is refused."""
    lost(bench)
    assert bench.role.state is m.MemberState.STARTING
    (refused,) = only(bench.reserve("a"), m.KvRefused)
    assert refused.reason == REASON
    assert only(bench.start("b", target=HERE), m.KvRefused)
    (failed,) = deltas(bench.start("d"))
    assert failed.retryable and failed.suspects == ("w",)
    assert bench.role.is_empty
    bench.feed(c.EngineRestored())
    assert bench.role.state is m.MemberState.READY
    bench.start("e")
    assert rows(bench.load("e"))


def test_kv_of_before_is_not_found_again() -> None:
    """The lost process held a part of every block, also of those that only the prefix cache holds."""
    bench = WorkerBench(policy=WorkerPolicy(), blocks=40)
    prompt = tuple(range(100, 164))
    for name in ("a", "b"):
        bench.start(name, prompt=len(prompt))
        first, _ = row_of(bench.load(name, prompt=prompt), name)
        assert first == (0 if name == "a" else 48)
        bench.iterate(**{name: 2})
        bench.feed(h.HandoffDelivered(name, 1, 1, 0.1, "tcp", 0.1))
    assert bench.pool.cached_blocks
    lost(bench)
    bench.feed(c.EngineRestored())
    assert bench.pool.cached_blocks == 0 and bench.pool.free_blocks == 40
    bench.start("d", prompt=len(prompt))
    assert row_of(bench.load("d", prompt=prompt), "d")[0] == 0


def test_a_draining_worker_leaves_all_the_same(bench: WorkerBench) -> None:
    """It has nothing left to finish."""
    bench.decode("a")
    bench.feed(m.Drain("w", bench.now + 100.0, "notice"))
    lost(bench)
    assert bench.role.state is m.MemberState.DRAINING
    assert only(bench.tick(after_s=2.0), c.Leave)


def test_what_a_stuck_iteration_computes_is_suspect_and_nothing_else() -> None:
    """One of its sequences may be why it does not end, and counts as having felled this worker; others are just tried again."""
    bench = WorkerBench(policy=WorkerPolicy(max_in_flight=1, prefix_caching=False), blocks=40)
    bench.decode("a")
    bench.prefill("p")
    waiting = bench.reserve("r")
    assert only(waiting, m.KvReserved)
    computed = {sequence.choice_id for sequence in bench.role.sequences if sequence.in_iteration}
    assert computed
    streams = {sequence.stream.attempt_id: sequence.choice_id for sequence in bench.role.sequences}
    commands = bench.feed(c.EngineLost(REASON, is_stuck=True))
    ended = {streams[delta.attempt_id]: delta for delta in deltas(commands)}
    assert all(delta.retryable for delta in ended.values())
    assert {name for name, delta in ended.items() if delta.suspects == ("w",)} == computed
    assert {delta.suspects for name, delta in ended.items() if name not in computed} == {()}
    assert bench.role.is_empty and bench.pool.used_blocks == 0
