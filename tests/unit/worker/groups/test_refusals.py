"""Devices that refuse their part are left alone for longer each time, and are never forgotten for good."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize("how", ["started again", "joins a group"])
def test_it_begins_anew(how: str) -> None:
    refusals = DeviceRefusals()
    _pauses(refusals, "d", 1, 5)
    refusals.refused("d", 1, 100.0)
    incarnation = 2 if how == "started again" else 1
    if how == "joins a group":
        refusals.joined("d")
    assert not refusals.is_paused("d", incarnation, 100.0)
    assert refusals.in_a_row("d", incarnation) == 0
    assert _pauses(refusals, "d", incarnation, 1) == [FIRST_PAUSE_S]
