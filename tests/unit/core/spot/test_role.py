"""The watcher's role: who receives which notice, when the cloud is polled, and when it may take its machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.messages.mesh import DrainReply, InterruptionKind, InterruptionReported, Tick
from spotwise.core.messages.worker import Drain
from spotwise.core.spot import commands as c
from spotwise.core.spot.notices import RETELL_S
from spotwise.core.spot.role import WatchPolicy
from tests.unit.core.spot.watching import (
    DRAIN,
    HERE,
    POLL_S,
    TIMEOUT_S,
    Watching,
    draining,
    left,
    notice,
    notices,
    of,
    reports,
    worker,
)

DEADLINE_S = 1500.0


@pytest.fixture
def watching() -> Watching:
    return Watching()


# --- recipients of notices ---------------------------------------------------------------------------------------------


def test_every_worker_of_the_machine_receives_the_deadline(watching: Watching) -> None:
    """All workers of the machine, and none of another, receive the deadline; the planner receives it once, with all of them."""
    watching.start(worker("b"), worker("a"), worker("far", "machine-1"), replace(worker("s"), kind=MemberKind.GATEWAY))
    commands = watching.answer(notice(DEADLINE_S))
    assert notices(commands) == [("a", DEADLINE_S), ("b", DEADLINE_S)]
    assert reports(commands) == [
        InterruptionReported("watcher-0", "e", InterruptionKind.NOTICE, ("a", "b"), DEADLINE_S, "cloud: go")
    ]
    assert {each.notice.reason for each in of(commands, c.PublishNotice)} == {"cloud: go"}


def test_named_workers_are_beside_it_wherever_they_are() -> None:
    """Named workers count as beside the watcher, and no other worker does, even on the same machine."""
    watching = Watching(workers=("far",))
    watching.start(worker("a"), worker("far", "machine-1"))
    assert notices(watching.answer(notice(DEADLINE_S))) == [("far", DEADLINE_S)]


def test_an_active_sign_is_reported_once(watching: Watching) -> None:
    """A sign in force produces one notice, however often the cloud repeats it."""
    watching.start(worker("a"))
    watching.answer(notice(DEADLINE_S))
    for _ in range(5):
        watching.feed(draining(worker("a")))
        commands = watching.answer(notice(DEADLINE_S))
        assert (notices(commands), reports(commands)) == ([], [])


def test_a_deadline_that_moves_is_reported_if_it_is_earlier(watching: Watching) -> None:
    """A later one is not: the worker may count on the first."""
    watching.start(worker("a"))
    watching.answer(notice(DEADLINE_S))
    watching.feed(draining(worker("a")))
    assert notices(watching.answer(notice(DEADLINE_S + 60))) == []
    assert notices(watching.answer(notice(DEADLINE_S - 60))) == [("a", DEADLINE_S - 60)]
    assert notices(watching.answer(notice(DEADLINE_S - 60), notice(DEADLINE_S - 90, "f"))) == [("a", DEADLINE_S - 90)]


def test_a_worker_that_does_not_drain_receives_the_notice_again(watching: Watching) -> None:
    """The bus may lose a message; once it drains it is left alone."""
    watching.start(worker("a"))
    watching.answer(notice(DEADLINE_S))
    assert notices(watching.feed(worker("a"), RETELL_S / 2)) == []
    again = watching.feed(worker("a"), RETELL_S / 2)
    assert (notices(again), of(again, c.PublishNotice)[0].again) == ([("a", DEADLINE_S)], True)
    assert notices(watching.feed(worker("a"), RETELL_S / 2)) == []
    assert notices(watching.feed(draining(worker("a")), RETELL_S)) == []


def test_a_worker_that_starts_during_a_notice_receives_it_when_ready(watching: Watching) -> None:
    """A starting worker receives an active notice once it is ready, and each incarnation receives it once."""
    watching.start()
    watching.answer(notice(DEADLINE_S))
    assert notices(watching.feed(worker("a", state=MemberState.STARTING))) == []
    commands = watching.feed(worker("a"))
    assert notices(commands) == [("a", DEADLINE_S)]
    assert [(each.kind, each.worker_ids) for each in reports(commands)] == [(InterruptionKind.NOTICE, ("a",))]
    assert notices(watching.feed(worker("a", incarnation=2))) == [("a", DEADLINE_S)]


def test_a_hint_is_reported_and_no_worker_leaves_for_it(watching: Watching) -> None:
    """A hint may come to nothing: workers receive only the notice after it."""
    watching.start(worker("a"))
    hint = notice(None, "h", is_hint=True)
    commands = watching.answer(hint)
    assert notices(commands) == []
    assert [(each.kind, each.worker_ids, each.deadline_s) for each in reports(commands)] == [
        (InterruptionKind.HINT, ("a",), None)
    ]
    assert notices(watching.answer(hint, notice(DEADLINE_S))) == [("a", DEADLINE_S)]


def test_a_sign_that_is_withdrawn_is_reported_and_the_next_is_a_new_one(watching: Watching) -> None:
    """After a withdrawn sign the next is a new one, with a later deadline, too; workers joining in between receive nothing."""
    watching.start(worker("a"))
    watching.answer(notice(DEADLINE_S))
    commands = watching.answer()
    assert (notices(commands), [each.kind for each in reports(commands)]) == ([], [InterruptionKind.WITHDRAWN])
    assert notices(watching.feed(worker("b"))) == []
    assert notices(watching.answer(notice(DEADLINE_S + 99))) == [("a", DEADLINE_S + 99), ("b", DEADLINE_S + 99)]


def test_one_of_two_signs_withdrawn_leaves_the_other(watching: Watching) -> None:
    watching.start(worker("a"))
    watching.answer(notice(DEADLINE_S), notice(DEADLINE_S - 10, "f"))
    watching.feed(draining(worker("a")))
    commands = watching.answer(notice(DEADLINE_S))
    assert (notices(commands), [each.event_id for each in reports(commands)]) == ([], ["f"])


# --- the questions ----------------------------------------------------------------------------------------------------


def test_nothing_is_polled_without_a_cloud(watching: Watching) -> None:
    watching.feed(worker("w"))
    watching.feed(DRAIN)
    watching.feed(Tick(), 10.0)
    assert of(watching.given, c.AskCloud) == []


def test_a_cloud_that_answers_is_polled_in_step(watching: Watching) -> None:
    """Counted from the question; at once, where the answer was held back for longer."""
    watching.start()
    assert of(watching.given, c.AskCloud) == [c.AskCloud(1000.0)]
    assert of(watching.answer(after_s=0.25), c.AskCloud) == [c.AskCloud(1000.0 + POLL_S)]
    assert of(watching.answer(after_s=30.0), c.AskCloud) == [c.AskCloud(1030.25)]


def test_a_cloud_that_does_not_answer_is_polled_ever_more_rarely(watching: Watching) -> None:
    """The delay doubles up to a bound, and the first good answer resets it."""
    watching.start()
    pauses = []
    for _ in range(7):
        (ask,) = of(watching.answer(problem="no connection", after_s=0.0), c.AskCloud)
        pauses.append(ask.at_s - watching.now)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    (ask,) = of(watching.answer(after_s=10.0), c.AskCloud)
    assert ask.at_s == watching.now + POLL_S


def test_a_thousand_failures_are_no_overflow() -> None:
    """The delay after many failures is bounded, and a poll interval above the bound is unchanged."""
    policy = WatchPolicy("h", backoff_s=10.0)
    assert policy.next_query_s(0.0, 5.0, 1.0, 100_000) == 15.0
    assert policy.next_query_s(0.0, 5.0, 60.0, 1) == 65.0


def test_a_problem_and_its_end_are_reported_once(watching: Watching) -> None:
    watching.start()
    for problem in (None, "a", "a", "b", "b", None, None):
        watching.answer(problem=problem)
    assert [each.problem for each in of(watching.given, c.ReportProblem)] == ["a", "b", None]


def test_a_problem_takes_no_notice_back(watching: Watching) -> None:
    """An error in a poll neither withdraws a notice nor delays one of the partial answer."""
    watching.start(worker("a"))
    assert notices(watching.answer(notice(DEADLINE_S), problem="status 500")) == [("a", DEADLINE_S)]
    assert reports(watching.answer(problem="no connection")) == []
    assert notices(watching.feed(worker("b"))) == [("b", DEADLINE_S)]


# --- the cloud's leave -------------------------------------------------------------------------------------------------

WAITING = notice(DEADLINE_S, acknowledgeable=True)


def test_the_event_is_acknowledged_when_the_last_worker_has_left(watching: Watching) -> None:
    a, b = worker("a"), worker("b")
    watching.start(a, b)
    watching.answer(WAITING)
    watching.feed(draining(a))
    watching.feed(left(a), 1.0)
    watching.answer(WAITING)
    assert of(watching.given, c.AcknowledgeEvent) == []
    assert of(watching.feed(left(b)), c.AcknowledgeEvent) == [c.AcknowledgeEvent("e")]
    watching.feed(c.AcknowledgementAnswered("e"))
    assert of(watching.answer(WAITING), c.AcknowledgeEvent) == []


def test_a_worker_that_fell_silent_may_be_at_work(watching: Watching) -> None:
    """The bus may be away: the cloud takes the machine at its deadline, and no earlier."""
    watching.start(worker("a"))
    watching.answer(WAITING)
    watching.feed(Tick(), TIMEOUT_S + 0.1)
    watching.answer(WAITING)
    assert of(watching.given, c.AcknowledgeEvent) == []
    watching.feed(draining(worker("a")))
    assert of(watching.feed(left(worker("a"))), c.AcknowledgeEvent) == [c.AcknowledgeEvent("e")]


def test_a_machine_without_a_noticed_worker_is_not_given_back(watching: Watching) -> None:
    """Heartbeats may not have come yet, and a starting worker counts, so the machine is not released."""
    watching.start()
    watching.answer(WAITING)
    a, b = worker("a"), worker("b", state=MemberState.STARTING)
    watching.feed(a)
    watching.feed(b)
    watching.feed(left(a))
    assert of(watching.given, c.AcknowledgeEvent) == []
    assert of(watching.feed(left(b)), c.AcknowledgeEvent) == [c.AcknowledgeEvent("e")]


def test_an_old_incarnations_goodbye_is_not_the_new_ones(watching: Watching) -> None:
    watching.start(worker("a"))
    watching.answer(WAITING)
    watching.feed(worker("a", incarnation=2))
    watching.feed(left(worker("a")))
    assert of(watching.given, c.AcknowledgeEvent) == []
    watching.feed(Tick(), TIMEOUT_S + 0.1)
    assert of(watching.answer(WAITING), c.AcknowledgeEvent) == []


def test_an_answer_that_the_cloud_did_not_take_is_given_again(watching: Watching) -> None:
    """A failed acknowledgement is repeated as long as the cloud offers the event for it."""
    watching.start(worker("a"))
    watching.answer(WAITING)
    watching.feed(left(worker("a")))
    assert watching.feed(c.AcknowledgementAnswered("e", "status 500")) == []
    assert of(watching.answer(WAITING), c.AcknowledgeEvent) == [c.AcknowledgeEvent("e")]
    watching.feed(c.AcknowledgementAnswered("e", "status 500"))
    assert of(watching.answer(replace(WAITING, acknowledgeable=False)), c.AcknowledgeEvent) == []


def test_an_event_that_was_withdrawn_is_acknowledged_anew(watching: Watching) -> None:
    """It is another notice, to workers that have come since."""
    watching.start()
    for incarnation in (1, 2):
        watching.feed(worker("a", incarnation=incarnation))
        watching.answer(WAITING)
        commands = watching.feed(left(worker("a", incarnation=incarnation)))
        assert of(commands, c.AcknowledgeEvent) == [c.AcknowledgeEvent("e")]
        watching.answer()


@pytest.mark.parametrize("acknowledge", [True, False])
def test_without_acknowledgement_the_machine_is_kept_to_its_deadline(acknowledge: bool) -> None:
    watching = Watching(acknowledge=acknowledge)
    watching.start(worker("a"))
    watching.answer(WAITING, notice(DEADLINE_S, "f"))
    watching.feed(left(worker("a")))
    assert of(watching.given, c.AcknowledgeEvent) == [c.AcknowledgeEvent("e")] * acknowledge


# --- no notice at all --------------------------------------------------------------------------------------------------


def lost(watching: Watching) -> list[tuple[tuple[str, ...], float | None, str]]:
    """Workers reported lost without a goodbye."""
    found = [each for each in reports(watching.given) if each.kind is InterruptionKind.LOST]
    return [(each.worker_ids, each.deadline_s, each.event_id) for each in found]


def test_a_worker_that_is_lost_without_a_word_is_reported_with_that_time(watching: Watching) -> None:
    """A silent worker of any machine is reported with the time of its loss; one that sent a goodbye is not."""
    watching.feed(worker("a", "machine-1", incarnation=7))
    watching.feed(worker("b", "machine-1"))
    watching.feed(left(worker("b", "machine-1")))
    watching.now += TIMEOUT_S + 0.1
    watching.beat_itself()
    watching.feed(Tick())
    watching.feed(Tick())
    assert lost(watching) == [(("a",), watching.now, "lost-a-7")]
    assert notices(watching.given) == []


def test_a_worker_that_was_restarted_was_lost(watching: Watching) -> None:
    watching.beat_itself()
    watching.feed(worker("a"))
    watching.feed(worker("a", incarnation=2))
    assert lost(watching) == [(("a",), watching.now, "lost-a-1")]


def test_one_watcher_speaks_for_all() -> None:
    first, second = Watching("watcher-0"), Watching("watcher-1")
    for watching in (first, second):
        for other in ("watcher-0", "watcher-1"):
            watching.feed(replace(worker(other), kind=MemberKind.SPOT_WATCHER))
        watching.feed(worker("a"))
        watching.feed(worker("a", incarnation=2))
    assert (len(lost(first)), len(lost(second))) == (1, 0)
    second.feed(replace(worker("watcher-0", state=MemberState.LEFT), kind=MemberKind.SPOT_WATCHER))
    second.feed(worker("a", incarnation=3))
    assert len(lost(second)) == 1


def test_a_watcher_without_heartbeats_reports_no_loss(watching: Watching) -> None:
    watching.beat_itself()
    watching.feed(worker("a"))
    watching.feed(Tick(), TIMEOUT_S + 0.1)
    assert lost(watching) == []


def test_members_that_are_no_workers_are_not_reported(watching: Watching) -> None:
    """Only workers are reported lost: the planner has no use for gateways."""
    watching.feed(replace(worker("g"), kind=MemberKind.GATEWAY))
    watching.now += TIMEOUT_S + 0.1
    watching.beat_itself()
    watching.feed(Tick())
    assert lost(watching) == []


# --- operators --------------------------------------------------------------------------------------------------------


def test_an_operators_drain_is_a_notice_to_that_worker(watching: Watching) -> None:
    watching.feed(worker("w", "machine-9"))
    for _ in range(2):
        assert watching.feed(DRAIN) == [c.PublishNotice(DRAIN), c.AnswerOperator(DrainReply(True, ""))]


def test_an_unknown_worker_is_reported_as_unknown(watching: Watching) -> None:
    assert watching.feed(DRAIN) == [c.AnswerOperator(DrainReply(False, "no worker or device w; there are: none"))]
    watching.feed(worker("b"))
    watching.feed(worker("a"))
    (answer,) = of(watching.feed(Drain("x", 1.0)), c.AnswerOperator)
    assert answer.reply == DrainReply(False, "no worker or device x; there are: a, b")


@pytest.mark.parametrize("wrong", [{"backoff_s": 0.0}, {"member_timeout_s": 0.0}])
def test_a_policy_needs_times(wrong: dict[str, float]) -> None:
    """Times of 0 are refused, since the watcher would poll without pause."""
    with pytest.raises(ValueError, match="must be above 0"):
        WatchPolicy("h", **wrong)  # type: ignore[arg-type]


class TestEndedProcesses:
    """A process of the machine that ends without a word is lost at once, and not after its silence."""

    def test_its_members_loss_is_announced_and_reported(self) -> None:
        """The watcher announces its member's loss in its place; the planner is notified when the announcement returns."""
        watching = Watching()
        watching.beat_itself()
        watching.start(worker("a"))
        (announced,) = watching.feed(c.ProcessEnded(worker("a")))
        assert announced == c.AnnounceLoss(worker("a", state=MemberState.LOST))
        watching.feed(worker("a", state=MemberState.LOST))
        (report,) = (given.report for given in watching.given if isinstance(given, c.PublishReport))
        assert (report.kind, report.worker_ids) == (InterruptionKind.LOST, ("a",))

    def test_one_that_left_or_was_replaced_is_not_announced(self) -> None:
        """A goodbye or a successor before the timeout prevents the report of a loss."""
        watching = Watching()
        watching.start(worker("a"), worker("b", incarnation=2))
        watching.feed(worker("a", state=MemberState.LEFT))
        assert watching.feed(c.ProcessEnded(worker("a"))) == []
        assert watching.feed(c.ProcessEnded(worker("b", incarnation=1))) == []


# --- devices -----------------------------------------------------------------------------------------------------------


def device(device_id: str, host: str = HERE) -> Member:
    """A device of a group."""
    return replace(worker(device_id, host), kind=MemberKind.DEVICE, pool=None)


def test_a_machine_that_has_only_a_device_of_a_group_is_reported_with_it(watching: Watching) -> None:
    """The group's leader is elsewhere, and gets no notice; the device gets one, and is acknowledged once it has left."""
    watching.start(device("d1"), device("d0", "machine-1"), worker("w", "machine-1"))
    commands = watching.answer(notice(DEADLINE_S, acknowledgeable=True))
    assert notices(commands) == [("d1", DEADLINE_S)]
    assert [(each.kind, each.worker_ids) for each in reports(commands)] == [(InterruptionKind.NOTICE, ("d1",))]
    assert of(watching.answer(notice(DEADLINE_S, acknowledgeable=True)), c.AcknowledgeEvent) == []
    watching.feed(left(device("d1")))
    assert of(watching.given, c.AcknowledgeEvent) == [c.AcknowledgeEvent("e")]


def test_a_notice_of_a_devices_machine_moves_forward_and_is_withdrawn(watching: Watching) -> None:
    watching.start(device("d1"))
    watching.answer(notice(DEADLINE_S))
    assert notices(watching.answer(notice(DEADLINE_S - 60.0))) == [("d1", DEADLINE_S - 60.0)]
    assert [(each.kind, each.worker_ids) for each in reports(watching.answer())] == [
        (InterruptionKind.WITHDRAWN, ("d1",))
    ]


def test_a_worker_that_is_a_group_leaves_its_devices_on_other_machines_behind(watching: Watching) -> None:
    watching.start(device("d0"), worker("w"))
    assert all(each.notice.devices_stay for each in of(watching.answer(notice(DEADLINE_S)), c.PublishNotice))


def test_a_device_that_is_lost_is_reported_and_one_can_be_drained(watching: Watching) -> None:
    watching.start(device("d1"))
    watching.beat_itself()
    watching.feed(Drain("d1", DEADLINE_S))
    assert of(watching.given, c.AnswerOperator)[-1].reply.accepted
    watching.feed(replace(device("d1"), state=MemberState.LOST))
    assert [(each.kind, each.worker_ids) for each in reports(watching.given)] == [(InterruptionKind.LOST, ("d1",))]
