"""A planner that starts late, or lost a message, learns of every interruption."""

from __future__ import annotations

import pytest

from spotwise.core.messages.mesh import InterruptionKind, InterruptionReported, Tick
from spotwise.core.spot import commands as c
from spotwise.core.spot.notices import KEPT_S, REPEAT_S
from tests.unit.core.spot.watching import Watching, notice, of, reports, worker

DEADLINE_S = 1500.0


@pytest.fixture
def watching() -> Watching:
    watching = Watching()
    watching.start(worker("a"))
    return watching


def ticks(watching: Watching, seconds: float) -> list[InterruptionReported]:
    """What is reported while time passes, with heartbeats of the worker, a tick every half second."""
    found = []
    for _ in range(int(seconds / 0.5)):
        watching.feed(worker("a"), 0.5)
        found += reports(watching.feed(Tick()))
    return found


def test_an_active_sign_is_repeated_as_it_is(watching: Watching) -> None:
    """Every repeat has the deadline in force, and is marked, so that it is logged and counted once."""
    watching.answer(notice(DEADLINE_S))
    watching.answer(notice(DEADLINE_S - 60))
    found = ticks(watching, 5 * REPEAT_S)
    assert len(found) == 5
    assert set(found) == {
        InterruptionReported("watcher-0", "e", InterruptionKind.NOTICE, ("a",), DEADLINE_S - 60, "cloud: go")
    }
    assert {each.again for each in of(watching.given, c.PublishReport) if each.report in found[:1]} == {False, True}


def test_a_repeat_names_the_machines_workers_of_its_moment(watching: Watching) -> None:
    """A worker that joined since the notice is in it, and one of another machine is not."""
    watching.answer(notice(DEADLINE_S))
    watching.feed(worker("b"))
    watching.feed(worker("far", "machine-1"))
    assert {each.worker_ids for each in ticks(watching, REPEAT_S)} == {("a", "b")}


def test_a_withdrawal_is_repeated_for_a_minute_and_replaces_the_notice(watching: Watching) -> None:
    """No repeat of a withdrawn notice comes after its withdrawal; after `KEPT_S` nothing is left to repeat."""
    watching.answer(notice(DEADLINE_S))
    watching.answer()
    found = ticks(watching, KEPT_S + REPEAT_S)
    assert {each.kind for each in found} == {InterruptionKind.WITHDRAWN}
    assert KEPT_S / REPEAT_S - 1 <= len(found) <= KEPT_S / REPEAT_S
    assert ticks(watching, KEPT_S) == []


def test_a_sign_that_is_active_again_ends_the_repeats_of_its_withdrawal(watching: Watching) -> None:
    watching.answer(notice(DEADLINE_S))
    watching.answer()
    watching.answer(notice(DEADLINE_S))
    assert {each.kind for each in ticks(watching, 3 * REPEAT_S)} == {InterruptionKind.NOTICE}


def test_a_loss_is_repeated_for_a_minute(watching: Watching) -> None:
    watching.beat_itself()
    watching.feed(worker("a", incarnation=2))
    [loss] = reports(watching.given)
    assert (loss.kind, loss.worker_ids) == (InterruptionKind.LOST, ("a",))
    found = ticks(watching, KEPT_S + REPEAT_S)
    assert set(found) == {loss}
    assert ticks(watching, KEPT_S) == []
