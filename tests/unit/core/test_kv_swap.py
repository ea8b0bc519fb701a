"""How many slots are kept free on the device."""

from __future__ import annotations

import pytest

from spotwise.core.kv.swap import SwapPolicy, WhenFull


@pytest.mark.parametrize(("queues", "slots"), [([], 2), ([1, 2, 3, 3], 2), ([1, 1, 2, 2, 3], 4)])
def test_a_burst_is_what_waits_in_the_uppermost_queues(queues: list[int], slots: int) -> None:
    """The slots kept are K at least, and otherwise the number of jobs in the top K' queues."""
    assert SwapPolicy(WhenFull.PROACTIVE, spare_slots=2, burst_queues=2).slots_to_keep(queues) == slots
