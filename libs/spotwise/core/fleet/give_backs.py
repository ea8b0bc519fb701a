"""Releases at the provider: one call at a time for an instance, repeated until it has gone.

Law: a failed release is repeated after a pause that doubles; one that was accepted, after `ACCEPTED_S`, should the instance
still be there.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.fleet.keeper_events import ReleaseAnswered

ACCEPTED_S = 60.0
_RETRY_S = 2.0
_LONGEST_RETRY_S = 30.0


@dataclass(slots=True)
class _GiveBack:
    is_open: bool = False
    again_s: float = 0.0
    retry_s: float = _RETRY_S


class GiveBacks:
    """Releases by instance."""

    def __init__(self) -> None:
        self._begun: dict[str, _GiveBack] = {}

    def begin(self, instance_id: str, now: float) -> bool:
        """Tell whether to release an instance now, and note that it is."""
        each = self._begun.setdefault(instance_id, _GiveBack())
        if each.is_open or now < each.again_s:
            return False
        each.is_open = True
        return True

    def answered(self, answer: ReleaseAnswered, now: float) -> None:
        """Note the provider's answer."""
        for instance_id in answer.instance_ids:
            each = self._begun.get(instance_id)
            if each is None:
                continue
            each.is_open = False
            if answer.problem is None:
                each.again_s = now + ACCEPTED_S
            else:
                each.again_s = now + each.retry_s
                each.retry_s = min(2 * each.retry_s, _LONGEST_RETRY_S)

    def forget(self, instance_id: str) -> None:
        """Forget an instance that has gone."""
        self._begun.pop(instance_id, None)
