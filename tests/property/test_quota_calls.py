"""Law: whatever becomes of a gateway's calls to the store, a key is charged in the end for what its requests used."""

from __future__ import annotations

import asyncio

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.contracts.lossy_keys import Fate, Step, count
from tests.fakes.memory import FakeClock
from tests.fakes.memory_keys import MemoryKeys

Steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(("begin", "begin", "end", "end", "report", "late", "wait", "wait")),
        st.integers(0, 5000),
        st.sampled_from(Fate),
    ),
    max_size=60,
)
#: Five requests begin and four end while the store executes without answering.
SLOW = [Step("begin", 1000, Fate.UNANSWERED), Step("wait", 0, Fate.ANSWERED)] * 5
TWICE_SETTLED = [
    *[Step("begin", 1000, Fate.ANSWERED)] * 8,
    *[Step("end", 10, Fate.ANSWERED)] * 4,
    Step("report", 1, Fate.UNANSWERED),
    Step("wait", 0, Fate.ANSWERED),
]


@settings(max_examples=300, deadline=None)
@example(SLOW)
@example(TWICE_SETTLED)
@given(Steps)
def test_a_key_is_charged_for_what_it_used(steps: list[Step]) -> None:
    """Under time-outs, repeated and late calls, and clients that leave while they wait; and no request keeps a place."""
    clock = FakeClock(1_700_000_000.0 // 86_400 * 86_400)
    used, counted = asyncio.run(count(MemoryKeys(clock), clock, steps))
    assert counted == used
