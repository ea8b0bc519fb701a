"""The engine of a simulated group is lost with a member of it, and empty when the group is whole again."""

from __future__ import annotations

from typing import Any

import pytest

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.costs.cost_model import LinkCost
from spotwise.core.requests.sampling import SampledToken
from spotwise.mesh.ports.ports import MeshError
from spotwise.worker.simulated.groups.serve import SimulatedGroupEngine
from tests.contracts.waiting import until
from tests.unit.worker.simulated.test_simulated_engine import PROMPT, WORDS, NoCost, record

BATCH = Batch((BatchRow("r@1", 0, len(PROMPT), (0,)),))


class Group:
    """A group's engine, and what the role hears of it."""

    def __init__(self) -> None:
        self.engine = SimulatedGroupEngine(
            NoCost(), WORDS, 8, 16, kv_bytes_per_token=4, name="nothing", host_blocks=8, host_link=LinkCost(60.0, 1.0)
        )
        self.heard: list[str] = []
        self.engine.watch(self.heard.append, lambda: self.heard.append("whole"))


async def test_it_computes_nothing_before_its_group_is_whole() -> None:
    group = Group()
    assert group.heard == ["its group is not whole"]
    with pytest.raises(MeshError, match="not whole"):
        await group.engine.add_sequence(record())
    group.engine.formed((), 1, ())
    assert group.heard[1:] == ["whole"]
    await group.engine.add_sequence(record())
    ended: list[Any] = []
    group.engine.run_iteration(BATCH, ended.append, ended.append)
    await until(lambda: bool(ended))
    assert isinstance(ended[0][0], SampledToken)


async def test_a_lost_group_ends_what_it_does_without_results() -> None:
    """Swaps fail, iterations have no result, and no sequence is left; it is lost once."""
    group = Group()
    group.engine.formed((), 1, ())
    await group.engine.add_sequence(record())
    results: list[Any] = []
    swaps: list[Exception | None] = []
    group.engine.run_iteration(BATCH, results.append, results.append)
    group.engine.swap_out((1,), (2,), swaps.append)
    group.engine.lose("d1 is gone")
    group.engine.lose("d2 is gone")
    group.engine.run_iteration(BATCH, results.append, results.append)
    assert group.heard[2:] == ["d1 is gone"]
    assert [str(error) for error in swaps] == ["d1 is gone"]
    assert group.engine.num_sequences == 0
    group.engine.formed((), 2, ())
    await group.engine.add_sequence(record())
    group.engine.run_iteration(BATCH, results.append, results.append)
    await until(lambda: bool(results))
    assert len(results) == 1
