"""Devices that refuse their part are left alone for longer each time, and are never forgotten for good."""

from __future__ import annotations

from spotwise.worker.groups.refusals import FIRST_PAUSE_S, LONGEST_PAUSE_S, DeviceRefusals


def _pauses(refusals: DeviceRefusals, name: str, incarnation: int, count: int) -> list[float]:
    """The pauses after so many refusals, each as soon as the one before is over."""
    now, pauses = 0.0, []
    for _ in range(count):
        refusals.refused(name, incarnation, now)
        began = now
        while refusals.is_paused(name, incarnation, now):
            now += FIRST_PAUSE_S / 2
        pauses.append(now - began)
    return pauses


def test_pauses_double_up_to_a_bound() -> None:
    pauses = _pauses(DeviceRefusals(), "d", 1, 9)
    assert pauses[:4] == [FIRST_PAUSE_S * factor for factor in (1, 2, 4, 8)]
    assert pauses[-1] == pauses[-2] == LONGEST_PAUSE_S


def test_each_device_has_its_own() -> None:
    refusals = DeviceRefusals()
    refusals.refused("d", 1, 0.0)
    assert refusals.is_paused("d", 1, 0.1) and not refusals.is_paused("e", 1, 0.1)


def test_a_process_that_was_started_again_begins_anew() -> None:
    refusals = DeviceRefusals()
    _pauses(refusals, "d", 1, 5)
    refusals.refused("d", 1, 100.0)
    assert not refusals.is_paused("d", 2, 100.0)
    assert refusals.in_a_row("d", 2) == 0
    assert _pauses(refusals, "d", 2, 1) == [FIRST_PAUSE_S]


def test_one_that_joins_a_group_begins_anew() -> None:
    refusals = DeviceRefusals()
    _pauses(refusals, "d", 1, 5)
    refusals.joined("d")
    assert refusals.in_a_row("d", 1) == 0
    assert _pauses(refusals, "d", 1, 1) == [FIRST_PAUSE_S]
