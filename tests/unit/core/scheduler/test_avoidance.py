"""Workers and pairs that failed are avoided as long as there are others."""

from __future__ import annotations

import pytest

from spotwise.core.messages.members import Member
from spotwise.core.messages.mesh import Suspects
from spotwise.core.scheduler.placement import AvoidingPlacer, Placer
from spotwise.core.scheduler.placements import PlacedBy, RequestDemand
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.pools import Pools
from spotwise.core.scheduler.quarantine import Quarantine
from tests.unit.core.builders import worker_member
from tests.unit.core.scheduler.placing import prompt_worker

SMALL = (prompt_worker("p"), worker_member("t"))
LARGE = (prompt_worker("p"), prompt_worker("q"), worker_member("t"), worker_member("u"))


def chosen(
    *members: Member, avoid: tuple[Suspects, ...] = (), resting: tuple[tuple[str, str], ...] = ()
) -> tuple[str, str, PlacedBy]:
    pools, quarantine = Pools(), Quarantine()
    for member in members:
        pools.join(member)
    for pair in (*resting, *resting):
        quarantine.failed(pair, 100.0)
    placer = AvoidingPlacer(Placer(pools, PoolPolicy()), quarantine)
    placement = placer.place(RequestDemand(16, 16), avoid, 100.0)
    assert placement is not None
    return placement.prompt_worker.id, placement.token_worker.id, placement.by


def test_a_request_whose_pair_failed_gets_another_token_worker() -> None:
    """A request whose pair failed gets another token worker or, without one, another prompt worker."""
    assert chosen(*LARGE) == ("p", "t", PlacedBy.HOME_POOL)
    assert chosen(*LARGE, avoid=(("p", "t"),)) == ("p", "u", PlacedBy.HOME_POOL)
    assert chosen(*LARGE[:3], avoid=(("p", "t"),)) == ("q", "t", PlacedBy.HOME_POOL)


def test_a_pair_without_another_is_served_by_its_token_worker() -> None:
    """Both phases there: nothing is handed off."""
    assert chosen(*SMALL, avoid=(("p", "t"),)) == ("t", "t", PlacedBy.BAD_PAIR)


def test_a_request_whose_hand_offs_failed_twice_is_handed_off_no_more() -> None:
    """However many pairs are left to try."""
    assert chosen(*LARGE, avoid=(("p", "u"), ("p", "t"))) == ("t", "t", PlacedBy.BAD_PAIR)
    assert chosen(*LARGE, avoid=(("q", "u"), ("q", "t"))) == ("t", "t", PlacedBy.BAD_PAIR)


@pytest.mark.parametrize(
    ("resting", "choice"),
    [
        ((("p", "t"),), ("p", "u", PlacedBy.HOME_POOL)),
        ((("p", "t"), ("p", "u")), ("q", "t", PlacedBy.HOME_POOL)),
        ((("p", "t"), ("q", "t"), ("p", "u")), ("t", "t", PlacedBy.BAD_PAIR)),
        ((("q", "u"),), ("p", "t", PlacedBy.HOME_POOL)),
    ],
)
def test_pairs_in_quarantine_are_avoided_by_all(
    resting: tuple[tuple[str, str], ...], choice: tuple[str, str, PlacedBy]
) -> None:
    assert chosen(*LARGE, resting=resting) == choice


def test_a_worker_that_failed_is_avoided() -> None:
    """A worker that failed is avoided for both phases, but is used where there is no other."""
    assert chosen(*LARGE, avoid=(("t",),)) == ("p", "u", PlacedBy.HOME_POOL)
    assert chosen(*LARGE, avoid=(("p",),)) == ("q", "t", PlacedBy.HOME_POOL)
    assert chosen(worker_member("t"), avoid=(("t",),))[:2] == ("t", "t")
    assert chosen(worker_member("t"), worker_member("u", owed=500), avoid=(("t",),))[:2] == ("u", "u")


def test_one_that_others_have_no_room_for_is_placed_all_the_same() -> None:
    """Avoidance is only a preference: a request that waited for another worker would hold up the queue behind it."""
    assert chosen(worker_member("t"), worker_member("u", free=1), avoid=(("t",),))[:2] == ("t", "t")
