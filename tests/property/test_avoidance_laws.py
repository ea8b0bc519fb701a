"""Whatever failed: a request is placed where it would be without, keeps away from it where it can, by the same laws."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.messages.members import Member, Pool
from spotwise.core.scheduler.placement import MAX_FAILED_HANDOFFS, AvoidingPlacer, Placer
from spotwise.core.scheduler.placements import RequestDemand
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.pools import Pools
from spotwise.core.scheduler.quarantine import Pair, Quarantine
from tests.property.test_placement_laws import DEMANDS, POLICIES, meshes

WORKERS = st.sampled_from([f"w{number}" for number in range(7)])
PAIRS = st.sets(st.tuples(WORKERS, WORKERS), max_size=12)
NOW = 100.0


@settings(max_examples=500)
@given(meshes(), DEMANDS, POLICIES, st.sets(WORKERS, max_size=3), PAIRS, PAIRS)
def test_what_failed_is_avoided_and_no_request_waits_for_it(
    members: list[Member],
    demand: RequestDemand,
    policy: PoolPolicy,
    workers: set[str],
    failed: set[Pair],
    resting: set[Pair],
) -> None:
    """Placed if and only if the rules place it; with nothing to avoid, as they do; never between a bad pair."""
    pools, quarantine = Pools(policy.decode_queue), Quarantine()
    for member in members:
        pools.join(member)
    for pair in sorted(resting) * 2:
        quarantine.failed(pair, NOW)
    placer = Placer(pools, policy)
    plain = placer.place(demand)
    avoid = (*((worker,) for worker in sorted(workers)), *sorted(failed))
    found = AvoidingPlacer(placer, quarantine).place(demand, avoid, NOW)
    assert (found is None) == (plain is None)
    if found is None or plain is None:
        return
    if not avoid and not resting:
        assert found == plain
    assert found.prompt_worker.is_ready
    assert found.token_worker.is_ready
    assert found.token_worker.has_capacity(demand.prompt_tokens, demand.max_new_tokens)
    if found.prompt_worker is not found.token_worker:
        assert found.prompt_worker.home_pool is Pool.PROMPT
        assert found.token_worker.home_pool in (Pool.TOKEN, Pool.MIXED)
        assert (found.prompt_worker.id, found.token_worker.id) not in failed | resting
        assert len(failed) < MAX_FAILED_HANDOFFS
    roomy = [view for view in pools if view.is_ready and view.has_capacity(demand.prompt_tokens, demand.max_new_tokens)]
    if any(view.id not in workers for view in roomy):
        assert found.token_worker.id not in workers
        assert found.prompt_worker.id not in workers
