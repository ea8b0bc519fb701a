"""What a prefill took, as the gateway knows it: its worker's wait, and when the assignment was heard of, which may be late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from spotwise.core.gateway.commands import Deliver
from spotwise.core.messages.mesh import TokenDelta
from spotwise.gateway.mesh.client import MeshGeneration

RECEIVED_S, FIRST_TOKEN_S, WAITED_S = 100.0, 101.0, 0.25


@pytest.mark.parametrize(
    ("assigned_s", "prefill_s"),
    [
        (100.25, 0.5),
        (None, 0.75),  # the token came before the assignment
        (100.999, 0.75),  # no time would be left for the prefill
    ],
)
def test_a_prefill_takes_time_also_where_the_assignment_is_late(assigned_s: float | None, prefill_s: float) -> None:
    client: Any = MeshGeneration.__new__(MeshGeneration)
    client._host = SimpleNamespace(clock=SimpleNamespace(now=lambda: FIRST_TOKEN_S))
    client._streams = {"r": SimpleNamespace(attempts=1, assigned_s=assigned_s, received_s=RECEIVED_S)}
    first = Deliver("r", (TokenDelta(1, 0, 7, queue_s=WAITED_S),), None)
    assert cast(MeshGeneration, client)._prefill_s(first) == pytest.approx(prefill_s)
