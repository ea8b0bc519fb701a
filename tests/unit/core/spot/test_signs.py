"""Tests of signs: the active ones and their deadlines."""

from __future__ import annotations

import pytest

from spotwise.core.spot.signs import SHORTEST_GRACE_S, ActiveSigns, MetadataAnswered, Sign

NOW = 1000.0


def seen(
    standing: ActiveSigns, *signs: Sign, now: float = NOW, problem: str | None = None
) -> list[tuple[str, float | None]]:
    """Return the deadlines that an answer changes."""
    changes = standing.observe(MetadataAnswered(signs, problem), now)
    return [(each.sign.event_id, each.deadline_s) for each in changes.seen]


@pytest.fixture
def standing() -> ActiveSigns:
    return ActiveSigns()


def test_a_deadline_that_is_named_is_the_clouds() -> None:
    assert seen(ActiveSigns(), Sign("a", "r", 1120.0), Sign("b", "r", 900.0)) == [("a", 1120.0), ("b", 900.0)]


def test_a_missing_deadline_counts_from_the_first_sight(standing: ActiveSigns) -> None:
    """Later answers do not push it on."""
    assert seen(standing, Sign("a", "r")) == [("a", NOW + SHORTEST_GRACE_S)]
    assert seen(standing, Sign("a", "r"), now=NOW + 20) == []
    assert seen(standing, Sign("a", "r", grace_s=0.0), now=NOW + 25) == []
    found = standing.notice()
    assert found is not None
    assert found[0] == NOW + SHORTEST_GRACE_S


def test_a_deadline_moves_to_an_earlier_time_only(standing: ActiveSigns) -> None:
    seen(standing, Sign("a", "r", 1100.0))
    assert seen(standing, Sign("a", "r", 1200.0)) == []
    assert seen(standing, Sign("a", "r", 1050.0)) == [("a", 1050.0)]
    assert seen(standing, Sign("a", "r", 1100.0)) == []


def test_the_earliest_of_several_signs_counts(standing: ActiveSigns) -> None:
    """Of several signs the earliest deadline counts; hints have none, and alone they are no notice."""
    assert seen(standing, Sign("h", "r", is_hint=True)) == [("h", None)]
    assert standing.notice() is None
    seen(standing, Sign("h", "r", is_hint=True), Sign("a", "r", 1100.0), Sign("b", "r", 1050.0))
    found = standing.notice()
    assert found is not None
    assert (found[0], found[1].event_id) == (1050.0, "b")


def test_what_an_answer_does_not_hold_is_gone_unless_the_answer_is_in_part(standing: ActiveSigns) -> None:
    """A problem withdraws nothing; a sign that comes again is new."""
    seen(standing, Sign("a", "r", 1100.0), Sign("b", "r", 1100.0))
    assert standing.observe(MetadataAnswered((), "status 500"), NOW).gone == ()
    changes = standing.observe(MetadataAnswered((Sign("b", "r", 1100.0),)), NOW)
    assert [each.sign.event_id for each in changes.gone] == ["a"]
    assert seen(standing, Sign("a", "r", 1300.0), Sign("b", "r", 1100.0)) == [("a", 1300.0)]


def test_an_answer_in_part_brings_what_it_holds() -> None:
    """A partial answer's signs count although a problem is reported."""
    assert seen(ActiveSigns(), Sign("a", "r", 1100.0), problem="status 500") == [("a", 1100.0)]


@pytest.mark.parametrize("again", [1, 2])
def test_a_sign_repeated_in_an_answer_is_one(again: int, standing: ActiveSigns) -> None:
    signs = [Sign("a", "r", 1100.0), *[Sign("a", "r", 1050.0)] * again]
    assert seen(standing, *signs) == [("a", 1050.0)]
    assert seen(standing, *signs) == []


def test_events_that_want_an_answer_are_those_that_stand(standing: ActiveSigns) -> None:
    """Events to acknowledge are in the order of their first sight, as long as they are offered."""
    signs = [Sign("b", "r", 1.0, acknowledgeable=True), Sign("a", "r", 1.0, acknowledgeable=True), Sign("c", "r", 1.0)]
    seen(standing, *signs)
    assert standing.acknowledgeable() == ["b", "a"]
    seen(standing, signs[1])
    assert standing.acknowledgeable() == ["a"]
