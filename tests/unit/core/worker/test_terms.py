"""A worker obeys no scheduler whose term is over."""

from __future__ import annotations

import pytest

from spotwise.core.messages import mesh as m
from spotwise.core.worker import commands as c
from tests.unit.core.builders import only
from tests.unit.core.worker.bench import HERE, LEASE_S, TARGET, WorkerBench, stream_of


def reservation(choice_id: str, term: int, number: int = 1, source_id: str = "") -> m.ReserveKv:
    return m.ReserveKv(choice_id, 1, stream_of(choice_id), "s", number, 40, 10, LEASE_S, source_id, term=term)


def test_a_reservation_of_an_earlier_term_is_refused(bench: WorkerBench) -> None:
    """The scheduler that was replaced learns so, from the answer and from the term in the worker's heartbeats."""
    assert only(bench.feed(reservation("a", 7)), m.KvReserved)
    (refused,) = only(bench.feed(reservation("b", 5)), m.KvRefused)
    assert refused.reason == "the scheduler's term 5 is over"
    assert bench.role.load().scheduler_term == 7
    assert bench.role.load().waiting_for_kv == 1
    assert only(bench.feed(reservation("c", 7)), m.KvReserved)


def test_a_refused_order_counts_as_received(bench: WorkerBench) -> None:
    """Else the scheduler would count it as on its way, should it act again."""
    bench.feed(reservation("a", 7, number=1))
    bench.feed(reservation("b", 5, number=2))
    assert bench.role.load().assignments_seen == (("s", 2),)


def test_a_prefill_of_an_earlier_term_goes_back_to_its_gateway(bench: WorkerBench) -> None:
    """Its reservation was made before the next term: without the error its gateway would wait for tokens."""
    bench.feed(reservation("a", 7))
    commands = bench.feed(m.StartPrefill("b", 1, stream_of("b"), "s", 2, 30, TARGET, LEASE_S, 10, 5))
    (batch,) = only(commands, m.TokenBatch)
    assert [(delta.retryable, delta.suspects) for delta in batch.deltas] == [(True, ())]
    commands = bench.feed(m.StartPrefill("c", 1, stream_of("c"), "s", 3, 30, HERE, LEASE_S, 10, 5))
    assert [each.reason for each in only(commands, m.KvRefused)] == ["the scheduler's term 5 is over"]
    assert [sequence.choice_id for sequence in bench.role.sequences] == ["a"]


@pytest.mark.parametrize("term", [5, 7, 0])
def test_an_earlier_term_cancels_nothing(term: int, bench: WorkerBench) -> None:
    """Another worker's cancellation has no term, and is obeyed."""
    bench.feed(reservation("a", 7))
    bench.feed(m.CancelRequest("a", 1, term))
    assert len(bench.role.sequences) == (1 if term == 5 else 0)


@pytest.mark.parametrize("term", [5, 7])
def test_an_earlier_term_ends_no_gateways_sequences(term: int, bench: WorkerBench) -> None:
    bench.feed(reservation("a", 7))
    bench.feed(m.ForgetGateway("g", 5, term))
    assert len(bench.role.sequences) == (1 if term == 5 else 0)


@pytest.mark.parametrize("term", [5, 7])
def test_an_earlier_term_changes_no_home_pool(term: int, bench: WorkerBench) -> None:
    bench.feed(reservation("a", 7))
    commands = bench.feed(m.ChangeHomePool("w", m.Pool.PROMPT, term))
    assert len(only(commands, c.TakeHomePool)) == (0 if term == 5 else 1)


def test_a_moves_reservation_has_no_term(bench: WorkerBench) -> None:
    """Another worker orders it."""
    bench.feed(reservation("a", 7))
    assert only(bench.feed(reservation("b", 0, source_id="other")), m.KvReserved)
