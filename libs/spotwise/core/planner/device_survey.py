"""Surveys the weights and KV that all devices hold, from their reports.

Law: each device is asked at once, and again after `DEVICE_SILENT_S`. One that answers none of
`SURVEYS` questions counts as gone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from spotwise.core.messages import mesh as m
from spotwise.core.messages.numerics import Crossing

#: Silence after which a device is asked again.
DEVICE_SILENT_S = 0.5
#: Questions to each device.
SURVEYS = 3


class DeviceSurvey:
    """One survey; `number` tells its answers from those of others."""

    def __init__(self, planner_id: str, number: int, device_ids: Iterable[str]) -> None:
        self._question = m.SurveyDevice(planner_id, number)
        self._silent = dict.fromkeys(device_ids)
        self._reports: dict[str, m.DeviceSurveyed] = {}
        self._asked = 0
        self._asked_s = 0.0

    @property
    def reports(self) -> tuple[m.DeviceSurveyed, ...]:
        """The answers so far, in order of id."""
        return tuple(self._reports[device_id] for device_id in sorted(self._reports))

    @property
    def silent(self) -> tuple[str, ...]:
        """The devices that have not answered."""
        return tuple(self._silent)

    def answered(self, report: m.DeviceSurveyed) -> None:
        """Take an answer, unless it is to another survey."""
        device_id = report.device_id
        if report.number == self._question.number and (device_id in self._silent or device_id in self._reports):
            self._reports[device_id] = report
            self._silent.pop(device_id, None)

    def is_over(self, now: float) -> bool:
        """Tell whether no answer is waited for any more."""
        return not self._silent or (self._asked == SURVEYS and now - self._asked_s >= DEVICE_SILENT_S)

    def due(self, now: float) -> list[m.Send]:
        """Return the questions that are due."""
        if self._asked == SURVEYS or (self._asked and now - self._asked_s < DEVICE_SILENT_S):
            return []
        self._asked += 1
        self._asked_s = now
        return [m.Send(device_id, self._question) for device_id in self._silent]


def of_other_classes(
    reports: Sequence[m.DeviceSurveyed],
    class_of: Callable[[str], str],
    leaving: Mapping[str, float],
    serving: Iterable[m.DeviceGroup],
    devices: int,
    crossing: Crossing,
) -> dict[str, float]:
    """Return the devices that get no position since groups form within one numerics class; each with infinity in place of a
    deadline. That class is the one that serves, where it has enough devices, or crossings are refused and it has any; else the
    one of most devices.

    Args:
        class_of: gives a device's class, which may be gone.
        leaving: devices that get no position anyway.
        serving: groups that serve now.
        devices: how many are needed.
    """
    classes = {each.device_id: class_of(each.device_id) for each in reports if each.device_id not in leaving}
    counts = Counter(classes.values())
    own = next((known for group in serving for each in group.device_ids if (known := class_of(each))), "")
    if own in counts and (counts[own] >= devices or crossing is Crossing.REFUSE):
        chosen = own
    else:
        chosen = min(counts, key=lambda each: (-counts[each], each), default="")
    return {device_id: math.inf for device_id, numerics_class in classes.items() if numerics_class != chosen}
