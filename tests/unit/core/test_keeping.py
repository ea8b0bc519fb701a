"""The role of kept requests: who owns one, whether it continues without its client, and how it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.gateway import keeping as k
from spotwise.core.gateway.commands import FAIL_TAKEN
from spotwise.core.gateway.kept_request import CANCELLED, FINISHED, KeptEnding, KeptRequest, KeptState, owner_of
from tests.unit.core.builders import one

RESUME_S, KEPT_S = 30.0, 600.0
TURN = k.Turn("r", owner_of("g/1"))
LATER = k.Turn("r", owner_of("g/1", 3))
FAILED = KeptEnding("failed", 503, "mesh_full", "All workers are full.")
TAKEN = KeptEnding("failed", 409, FAIL_TAKEN, "")
FORM = KeptRequest("r", "acme", "chat", "{}", "h", 0, (7,), "p", is_resumable=True)
OVER = [k.StepDown(TURN), k.Forget(TURN)]


class Bench:
    """A role that owns one request."""

    def __init__(self, *, is_resumable: bool) -> None:
        self.role = k.KeepingRole(RESUME_S, KEPT_S)
        self.begun = self.feed(k.RequestOwned(TURN, is_resumable))

    def feed(self, *events: k.KeepingEvent) -> list[k.KeepingCommand]:
        """The commands of some events."""
        return [command for event in events for command in self.role.handle(event, 0.0)]


@pytest.fixture(params=[False, True], ids=["bound", "resumable"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(is_resumable=request.param)


def kept(turn: k.Turn, ending: KeptEnding | None = None) -> KeptState:
    """What the store has of the request."""
    return KeptState(FORM, turn.owner, ending, {}, ())


@pytest.mark.parametrize("ending", [FINISHED, FAILED])
def test_an_ending_is_stored_once_and_then_forgotten(bench: Bench, ending: KeptEnding) -> None:
    """After the last tokens, and for the time that such a request is kept."""
    (store,) = bench.feed(k.ChoicesEnded(TURN, ending))
    kept_s = KEPT_S if bench.begun else k.ENDED_STREAM_KEPT_S
    assert store == k.StoreEnding(TURN, ending, kept_s)
    assert bench.role.owns(TURN)
    assert bench.feed(k.EndingStored(TURN)) == [k.Forget(TURN)]
    assert not bench.role.owns(TURN)


def test_a_bound_request_is_cancelled_with_its_connection() -> None:
    bench = Bench(is_resumable=False)
    assert bench.begun == []
    assert bench.feed(k.ReaderLeft(TURN)) == [k.CancelChoices(TURN)]
    assert bench.feed(k.ChoicesEnded(TURN, FINISHED)) == [k.StoreEnding(TURN, CANCELLED, k.ENDED_STREAM_KEPT_S)]


def test_a_resumable_request_continues_until_no_reader_has_come_for_a_while() -> None:
    """The time begins with the request, and again with each last reader's end."""
    bench = Bench(is_resumable=True)
    assert bench.begun == [k.AwaitReader(TURN, 1, RESUME_S)]
    assert bench.feed(k.ReaderJoined(TURN), k.ReaderJoined(TURN), k.ReaderLeft(TURN)) == []
    assert bench.feed(k.WaitEnded(TURN, 1)) == []
    assert bench.feed(k.ReaderLeft(TURN)) == [k.AwaitReader(TURN, 2, RESUME_S)]
    assert bench.feed(k.WaitEnded(TURN, 1)) == []
    assert bench.feed(k.WaitEnded(TURN, 2)) == [k.CancelChoices(TURN)]
    assert bench.feed(k.ReaderJoined(TURN), k.ReaderLeft(TURN)) == []
    assert bench.feed(k.ChoicesEnded(TURN, FAILED)) == [k.StoreEnding(TURN, CANCELLED, KEPT_S)]


def test_a_caller_cancels_a_request_that_is_read() -> None:
    """Twice is once; what has ended already keeps its ending."""
    bench = Bench(is_resumable=True)
    bench.feed(k.ReaderJoined(TURN))
    assert bench.feed(k.CancelRequested(TURN), k.CancelRequested(TURN)) == [k.CancelChoices(TURN)]
    bench = Bench(is_resumable=True)
    assert bench.feed(k.ChoicesEnded(TURN, FINISHED), k.CancelRequested(TURN)) == [
        k.StoreEnding(TURN, FINISHED, KEPT_S)
    ]


def test_a_gateway_that_leaves_hands_on_what_it_would_cancel() -> None:
    """And stores the ending of what has ended by itself."""
    bench = Bench(is_resumable=False)
    bench.feed(k.ReaderLeft(TURN))
    assert bench.feed(k.ChoicesEnded(TURN, CANCELLED, is_leaving=True)) == [k.SaveTokens(TURN)]
    assert not bench.role.owns(TURN)
    bench = Bench(is_resumable=False)
    assert one(bench.feed(k.ChoicesEnded(TURN, FINISHED, is_leaving=True)), k.StoreEnding)


@pytest.mark.parametrize("lost", [k.RequestLost(TURN), k.ChoicesEnded(TURN, TAKEN)], ids=["told", "refused"])
@pytest.mark.parametrize("before", [(), (k.ReaderLeft(TURN),), (k.ChoicesEnded(TURN, FINISHED),)], ids=str)
def test_what_is_lost_ends_here_and_stores_nothing_more(
    lost: k.KeepingEvent, before: tuple[k.KeepingEvent, ...]
) -> None:
    """In whichever state it is; what comes of the turn afterwards changes nothing."""
    if before and isinstance(before[0], k.ChoicesEnded) and isinstance(lost, k.ChoicesEnded):
        lost = k.RequestLost(TURN)  # choices end once
    bench = Bench(is_resumable=False)
    bench.feed(*before)
    assert bench.feed(lost) == OVER
    late = (k.ChoicesEnded(TURN, FINISHED), k.EndingStored(TURN), k.ReaderLeft(TURN), k.RequestLost(TURN))
    assert bench.feed(*late) == []
    assert bench.role.turn_of("r") is None


def test_of_two_turns_here_the_later_one_owns_the_request(bench: Bench) -> None:
    """Whichever is heard of first."""
    assert bench.feed(k.RequestOwned(LATER, is_resumable=False)) == OVER
    assert bench.role.turn_of("r") == LATER
    assert bench.feed(k.RequestOwned(TURN, is_resumable=True)) == [k.Forget(TURN)]
    assert bench.feed(k.ReaderJoined(TURN), k.ChoicesEnded(TURN, FINISHED)) == []
    assert bench.role.turn_of("r") == LATER


def test_only_the_owner_of_a_resumable_request_lets_others_join(bench: Bench) -> None:
    """Until it is over; as the store names another owner, this gateway has lost it, and does not know yet."""
    is_resumable = bool(bench.begun)
    assert bench.role.can_join(TURN) is is_resumable
    assert not bench.role.can_join(LATER)
    resumption = bench.role.resumption(kept(TURN))
    assert resumption is (k.Resumption.JOIN if is_resumable else k.Resumption.TAKE)
    assert bench.role.resumption(kept(LATER)) is k.Resumption.TAKE
    bench.feed(k.RequestLost(TURN))
    assert bench.role.resumption(kept(TURN)) is k.Resumption.TAKE


@pytest.mark.parametrize(
    ("ending", "resumption"),
    [
        (FINISHED, k.Resumption.REPLAY),
        (FAILED, k.Resumption.REFUSE_FAILED),
        (replace(CANCELLED), k.Resumption.REFUSE_CANCELLED),
    ],
)
def test_what_has_ended_is_not_taken(ending: KeptEnding, resumption: k.Resumption) -> None:
    assert k.KeepingRole(RESUME_S, KEPT_S).resumption(kept(TURN, ending)) is resumption
