"""How full the store is, in `spotwise status`."""

from __future__ import annotations

from spotwise.cli.mesh.status_table import store_problems, use_line
from spotwise.core.access.store_budget import FULL_FOR_S, Kind, RoomUse

NOW_S = 1_700_000_000.0
USES = {Kind.LEDGERS: RoomUse(3 << 19, 2 << 20), Kind.REQUESTS: RoomUse(0, 1 << 30), Kind.RESPONSES: RoomUse()}


def test_what_is_kept_is_shown_beside_its_room() -> None:
    assert use_line(USES) == "kept in the store, MiB: ledgers 1.5 of 2.0, requests 0.0 of 1,024.0"
    assert use_line({Kind.RESPONSES: RoomUse()}) == "kept in the store, MiB: nothing"


def test_a_store_that_was_full_of_late_is_a_problem() -> None:
    assert store_problems(USES, NOW_S) == []
    full = {**USES, Kind.REQUESTS: RoomUse(9, 9, NOW_S), Kind.RECORDS: RoomUse(9, 9, NOW_S - FULL_FOR_S)}
    (problem,) = store_problems(full, NOW_S + 1)
    assert "requests make room" in problem
    assert "maxmemory" in problem
    assert store_problems(full, NOW_S + FULL_FOR_S) == []
