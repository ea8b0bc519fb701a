"""Reservations, leases, and KV that arrives."""

from __future__ import annotations

import pytest

from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import KvTarget
from spotwise.core.requests.request import FinishReason
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import Reserve, WorkerPolicy
from spotwise.core.worker.sequences.token_side import FIRST_TERM
from tests.unit.core.builders import ledger, only, sent
from tests.unit.core.worker.bench import LEASE_S, WorkerBench, deltas, error_delta, rows, stream_of


class TestReservation:
    """Blocks are granted at once or refused with a reason."""

    def test_a_grant_names_the_blocks_and_opens_them_to_the_transfer(self, bench: WorkerBench) -> None:
        """40 tokens take 3 blocks; the record is fetched while the prompt is computed on the prompt worker."""
        target = KvTarget("w", 9, "w:2", (0, 1, 2))
        assert bench.reserve("r", tokens=40, number=4) == [
            h.ExpectKv("r", 1, (0, 1, 2)),
            m.Send("s", m.KvReserved("r", 1, 4, target)),
            c.LoadRecord("r", 1),
        ]
        load = bench.role.load()
        assert (load.kv_blocks_free, load.remaining_tokens, load.waiting_for_kv) == (17, 10, 1)

    def test_without_room_it_is_refused_and_nothing_is_held(self) -> None:
        """The refusal has the needed and the available number of blocks."""
        bench = WorkerBench(blocks=2)
        refusal = m.KvRefused("r", 1, 4, "w", "3 blocks may be needed, there are 2")
        assert bench.reserve("r", tokens=40, number=4) == [m.Send("s", refusal)]
        bench.assert_empty()
        bench.reserve("small", tokens=10)
        refusal = m.KvRefused("r", 1, 5, "w", "2 blocks needed, 1 free")
        assert bench.reserve("r", tokens=30, number=5) == [m.Send("s", refusal)]

    def test_what_is_reserved_already_is_refused(self, bench: WorkerBench) -> None:
        """A second reservation of the request is refused, and the first is kept."""
        bench.reserve("r")
        assert only(bench.reserve("r"), m.KvRefused)[0].reason == "reserved already"
        assert bench.pool.used_blocks == 3

    def test_a_new_attempt_replaces_the_old_one(self, bench: WorkerBench) -> None:
        """The old transfer is closed before the new one opens, and the old attempt's gateway gets no message."""
        bench.reserve("r", 1)
        commands = bench.reserve("r", 2)
        assert [type(command) for command in commands[:3]] == [h.ForgetKv, c.DropSequence, h.ExpectKv]
        assert commands[1] == c.DropSequence("r@1")
        assert deltas(commands) == []
        assert bench.pool.used_blocks == 3

    def test_heartbeats_echo_the_last_assignment_of_each_scheduler(self) -> None:
        """Granted or refused: the order was seen."""
        bench = WorkerBench(blocks=3)
        bench.reserve("a", number=4)
        bench.reserve("b", number=5)
        stream = stream_of("c")
        bench.feed(m.ReserveKv("c", 1, stream, "another", 2, 40, 10, 3.0))
        assert bench.role.load().assignments_seen == (("another", 2), ("s", 5))


class TestLeases:
    """A reservation that is not renewed is released."""

    def test_expiry_sends_a_retryable_error_and_frees_the_blocks(self, bench: WorkerBench) -> None:
        """The transfer is shut first: nothing may be written into blocks that have another owner."""
        bench.reserve("r")
        assert bench.tick(after_s=FIRST_TERM * LEASE_S - 0.1) == []
        commands = bench.tick(after_s=0.1)
        delta = error_delta(commands)
        assert (delta.attempt_id, delta.retryable) == (stream_of("r").attempt_id, True)
        assert "went silent" in delta.error
        tail = [command for command in commands if isinstance(command, h.ForgetKv | c.DropSequence)]
        assert tail == [h.ForgetKv("r"), c.DropSequence("r@1")]
        assert ledger(commands, "failed")[0]["reason"] == delta.error
        bench.assert_empty()

    def test_renewals_extend_it(self, bench: WorkerBench) -> None:
        """A renewal extends the lease by its whole length from the moment of the renewal."""
        bench.reserve("r")
        bench.feed(m.RenewLeases((("r", 1),)), after_s=2.0)
        assert bench.tick(after_s=2.9) == []
        assert error_delta(bench.tick(after_s=0.2)).retryable

    def test_renewals_of_what_is_not_here_change_nothing(self, bench: WorkerBench) -> None:
        """A renewal of another epoch, or of an absent request, extends no lease."""
        bench.reserve("r")
        assert bench.feed(m.RenewLeases((("r", 2), ("gone", 1))), after_s=2.0) == []
        assert error_delta(bench.tick(after_s=FIRST_TERM * LEASE_S - 2.0)).retryable

    def test_the_first_term_is_longer(self, bench: WorkerBench) -> None:
        """The first term is longer: the renewing prompt worker gets its order from a scheduler that may be slow."""
        bench.reserve("r")
        assert bench.feed(m.RenewLeases((("r", 1),)), after_s=FIRST_TERM * LEASE_S - 0.1) == []
        assert bench.tick(after_s=LEASE_S - 0.1) == []
        assert error_delta(bench.tick(after_s=0.1)).retryable

    def test_a_sequence_whose_kv_arrived_has_no_lease(self, bench: WorkerBench) -> None:
        """The sequence belongs to this worker, and a late renewal gives it no lease."""
        bench.decode("r")
        bench.feed(m.RenewLeases((("r", 1),)))
        assert bench.tick(after_s=100.0) == []


class TestArrival:
    """KV that arrived makes a reservation a running sequence."""

    def test_it_decodes_from_the_first_token_on(self, bench: WorkerBench) -> None:
        """The engine learns the token that the prompt worker sampled, then computes it at the prompt's end."""
        bench.reserve("r")
        assert bench.load("r") == []
        commands = bench.arrive("r", tokens=30, first=50)
        assert commands[-2] == c.AppendToken("r@1", 50)
        (order,) = only(commands, c.RunIteration)
        (row,) = order.batch.rows
        assert (row.sequence_id, row.first_position, row.num_tokens, row.block_ids) == ("r@1", 30, 1, (0, 1, 2))
        assert row.is_decode

    def test_the_first_token_is_no_more_owed(self, bench: WorkerBench) -> None:
        """The prompt worker sampled it; ten new tokens at most leave nine to be produced here."""
        bench.reserve("r", new=10)
        assert bench.role.load().remaining_tokens == 10
        bench.load("r")
        bench.arrive("r")
        assert bench.role.load().remaining_tokens == 9
        bench.iterate(r=51)
        assert bench.role.load().remaining_tokens == 8

    def test_its_tokens_are_numbered_after_the_first(self, bench: WorkerBench) -> None:
        """Index 0 was the prompt worker's, as was the prompt: its ledger lines say so."""
        bench.decode("r")
        first = bench.iterate(r=51)
        assert deltas(first) == [m.TokenDelta(stream_of("r").attempt_id, 1, 51)]
        assert ledger(first, "prefilled") == []
        assert deltas(bench.iterate(r=52)) == [m.TokenDelta(stream_of("r").attempt_id, 2, 52)]

    def test_its_arrival_is_in_the_ledger(self, bench: WorkerBench) -> None:
        """Bytes, seconds and transport as the transfer plane measured them."""
        bench.reserve("r")
        bench.load("r")
        assert ledger(bench.arrive("r", after_s=0.5), "kv_received") == [
            {"kv_bytes": 4096, "transfer_s": 0.25, "transport": "shm", "reserved_s": 0.5}
        ]

    def test_kv_may_arrive_before_the_engine_knows_the_sequence(self, bench: WorkerBench) -> None:
        """The first token is kept for the engine until the record is loaded; nothing runs before."""
        bench.reserve("r")
        commands = bench.arrive("r", first=50)
        assert only(commands, c.AppendToken) == []
        assert rows(commands) == []
        commands = bench.load("r")
        assert commands[0] == c.AppendToken("r@1", 50)
        assert rows(commands) == ["r@1"]
        assert deltas(bench.iterate(r=51))[0].token_index == 1

    def test_a_later_attempt_counts_the_committed_tokens(self) -> None:
        """In either order of arrival: three tokens committed, the fourth from the prompt worker, the fifth from here."""
        for kv_first in (False, True):
            bench = WorkerBench()
            bench.reserve("r")
            if kv_first:
                bench.arrive("r")
                bench.load("r", committed=(7, 8, 9))
            else:
                bench.load("r", committed=(7, 8, 9))
                bench.arrive("r")
            assert deltas(bench.iterate(r=51))[0].token_index == 4

    def test_kv_for_a_reservation_that_is_gone_changes_nothing(self, bench: WorkerBench) -> None:
        """KV that arrives after its reservation has ended, or that is announced twice, is ignored."""
        assert bench.arrive("r") == []
        bench.decode("d")
        assert bench.arrive("d") == []

    def test_it_ends_by_a_stop_token_or_by_length(self) -> None:
        """The last delta carries the reason, the ledger the tokens decoded here; the blocks are free at once."""
        for token, reason, count in ((2, FinishReason.STOP, 1), (51, FinishReason.LENGTH, 9)):
            bench = WorkerBench()
            bench.decode("r")
            commands: list[c.WorkerCommand] = []
            for _ in range(count):
                commands = bench.iterate(after_s=0.1, r=token)
            assert deltas(commands)[0].finish_reason is reason
            (facts,) = ledger(commands, "decoded")
            assert (facts["tokens"], facts["finish_reason"]) == (count, reason.value)
            assert abs(facts["decode_s"] - 0.1 * count) < 1e-6
            assert commands[-1] == c.DropSequence("r@1")
            assert rows(commands) == []
            bench.assert_empty()


class TestCancel:
    """A cancelled reservation ends without an answer."""

    def test_a_cancelled_reservation_is_shut_and_freed_without_a_word_to_the_gateway(self, bench: WorkerBench) -> None:
        """The gateway closed it, or made a newer attempt."""
        bench.reserve("r")
        assert bench.feed(m.CancelRequest("r", 1)) == [h.ForgetKv("r"), c.DropSequence("r@1")]
        bench.assert_empty()

    def test_a_cancellation_covers_its_epoch_and_those_before_only(self, bench: WorkerBench) -> None:
        """A cancellation ends its epoch and earlier ones; a newer attempt continues."""
        bench.reserve("r", 3)
        assert bench.feed(m.CancelRequest("r", 2)) == []
        assert bench.feed(m.CancelRequest("other", 3)) == []
        assert bench.pool.used_blocks == 3
        assert bench.feed(m.CancelRequest("r", 4)) == [h.ForgetKv("r"), c.DropSequence("r@3")]

    def test_a_record_that_loads_after_the_end_is_dropped_from_the_engine(self, bench: WorkerBench) -> None:
        bench.reserve("r")
        bench.feed(m.CancelRequest("r", 1))
        assert bench.load("r") == [c.DropSequence("r@1")]


class TestMissingRecord:
    """The store lost it, or the engine refused it."""

    def test_it_ends_the_attempt(self) -> None:
        """Whether its KV is awaited or here already; another attempt follows where it may find a record."""
        for arrived in (False, True):
            for retryable in (False, True):
                bench = WorkerBench()
                bench.reserve("r")
                if arrived:
                    bench.arrive("r")
                commands = bench.feed(c.RecordUnavailable("r", 1, "gone", retryable))
                delta = error_delta(commands)
                assert (delta.error, delta.retryable, delta.token_index) == ("gone", retryable, int(arrived))
                assert (h.ForgetKv("r") in commands) is not arrived
                bench.assert_empty()

    def test_a_gone_sequence_sends_nothing(self) -> None:
        """The record went with the request."""
        assert WorkerBench().feed(c.RecordUnavailable("r", 1, "gone", retryable=True)) == []


class TestReservedAgain:
    """Reserved, cancelled and reserved again: the answer to the first load must not pass for one to the second."""

    @staticmethod
    def cancelled_while_loading() -> WorkerBench:
        bench = WorkerBench()
        bench.reserve("r", number=1)
        bench.feed(m.CancelRequest("r", 1))
        return bench

    def test_it_is_refused_until_the_first_load_is_answered(self) -> None:
        """Else the second would run on what the engine is about to forget."""
        bench = self.cancelled_while_loading()
        (refused,) = only(bench.reserve("r", number=2), m.KvRefused)
        assert refused.assignment == 2
        bench.assert_empty()

    def test_once_it_is_answered_the_attempt_starts_anew(self) -> None:
        """Once the cancelled load has ended, in success or failure, the same attempt can be reserved and started again."""
        for first_load in (None, c.RecordUnavailable("r", 1, "gone", retryable=True)):
            bench = self.cancelled_while_loading()
            answer = bench.load("r") if first_load is None else bench.feed(first_load)
            assert answer == ([c.DropSequence("r@1")] if first_load is None else [])
            assert only(bench.reserve("r", number=2), c.LoadRecord) == [c.LoadRecord("r", 1)]
            bench.load("r", committed=(7, 8))
            bench.arrive("r")
            assert deltas(bench.iterate(r=51))[0].token_index == 3


def test_one_message_goes_to_each_recipient_however_many_leases_expire(bench: WorkerBench) -> None:
    """An event that ends several sequences still makes one token batch a gateway."""
    bench.reserve("a")
    bench.reserve("b")
    bench.reserve("c", gateway="g2")
    commands = bench.tick(after_s=FIRST_TERM * LEASE_S)
    assert len(sent(commands, "g")) == len(sent(commands, "g2")) == 1
    assert len(deltas(commands)) == 2


@pytest.mark.parametrize(
    ("reserve", "new"), [(Reserve.MAX_TOKENS, 0), (Reserve.MAX_TOKENS, 5), (Reserve.ON_DEMAND, 64)]
)
def test_a_reservation_for_no_token_is_refused(reserve: Reserve, new: int) -> None:
    """It would own no block, and its name in the pool could not be freed: the next one of its name would raise."""
    bench = WorkerBench(policy=WorkerPolicy(reserve=reserve))
    assert len(only(bench.reserve("r", tokens=0, new=new), m.KvRefused)) == 1
    assert bench.role.is_empty
    assert len(only(bench.reserve("r"), m.KvReserved)) == 1
