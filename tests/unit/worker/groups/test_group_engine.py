"""The leader's engine orders the same of every member, and loses everything at once when one is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.messages import groups as g
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SampledToken, SamplingParams
from spotwise.worker.groups.group_engine import BlockTables, EngineLostError, GroupEngine

RECORD = RequestRecord("r#0", 1, "g", 5, "model", (1, 2, 3), (), SamplingParams(), StopCriteria(9), 1.5)
BATCH = Batch((BatchRow("r#0@1", 0, 3, (4,)),))
TOKEN = SampledToken("r#0@1", 7)


class OwnEngine:
    """The leader's part: notes its calls; the test ends what it runs."""

    def __init__(self, *, samples: bool) -> None:
        self.engine = SimpleNamespace(samples=samples)
        self.calls: list[tuple[Any, ...]] = []
        self.running: list[tuple[Callable[[Any], None], Callable[[Exception], None]]] = []
        self.swapping: list[Callable[[Exception | None], None]] = []

    async def prepare(self, record: RequestRecord) -> None:
        """Nothing is needed."""

    async def add_sequence(self, record: RequestRecord, prepared: None = None) -> None:
        if not record.prompt_token_ids:
            raise ValueError("empty")
        self.calls.append(("add", record.sequence_id))

    def append_tokens(self, tokens: Any) -> None:
        self.calls.append(("append", tokens))

    def drop_sequence(self, sequence_id: str) -> None:
        self.calls.append(("drop", sequence_id))

    def clear_not_finite(self, block_ids: Any) -> None:
        self.calls.append(("clear", block_ids))

    def drop_all(self) -> None:
        self.calls.append(("drop all",))

    def run_iteration(self, batch: Batch, finished: Any, failed: Any, on_layers: Any) -> None:
        self.running.append((finished, failed))

    def swap_out(self, block_ids: Any, host_block_ids: Any, ended: Any) -> None:
        self.swapping.append(ended)


class Part:
    """The leader's exchange."""

    def __init__(self, engine: OwnEngine) -> None:
        self.engine = engine
        self.is_broken = False
        self.broken_by: int | None = None

    def break_up(self) -> None:
        self.is_broken = True


class Link:
    """A device's stream: keeps the orders."""

    def __init__(self, device_id: str) -> None:
        self.device_id = device_id
        self.orders: list[g.GroupOrder] = []

    def send(self, order: g.GroupOrder) -> None:
        self.orders.append(order)


class Bench:
    """A group engine of P x M, whole, at epoch 5."""

    def __init__(self, stages: int, shards: int) -> None:
        self.own = OwnEngine(samples=stages == 1)
        self.part = Part(self.own)
        self.engine = GroupEngine(cast(Any, self.part), stages, shards)
        self.links = [Link(f"device-{number}") for number in range(1, stages * shards)]
        self.lost: list[str] = []
        self.restored = 0
        self.engine.formed(cast(Any, self.links), 5, ())
        self.engine.watch(self.lost.append, self._restored)
        self.finished: list[Any] = []

    def _restored(self) -> None:
        self.restored += 1

    def run(self) -> None:
        self.engine.run_iteration(BATCH, self.finished.append, lambda error: pytest.fail(str(error)))


def test_every_device_gets_what_the_leaders_engine_gets() -> None:
    """In the same order; what the leader's refuses, no device gets."""
    bench = Bench(1, 3)
    asyncio.run(bench.engine.add_sequence(RECORD))
    bench.run()
    bench.engine.drop_sequence("r#0@1")
    step = g.RunStep(1, (g.StepRow("r#0@1", 0, 3, 0, (4,)),))
    for link in bench.links:
        assert link.orders == [g.AddGroupSequence(RECORD), step, g.DropGroupSequence("r#0@1")]
    assert bench.own.calls == [("add", "r#0@1"), ("drop", "r#0@1")] and len(bench.own.running) == 1
    with pytest.raises(ValueError, match="empty"):
        asyncio.run(bench.engine.add_sequence(replace(RECORD, prompt_token_ids=())))
    assert all(len(link.orders) == 3 for link in bench.links)


def test_every_member_clears_the_blocks_of_a_sequence_whose_numbers_are_none() -> None:
    """Before what follows of the result: their next owner's step comes later in the same streams."""
    bench = Bench(2, 1)
    bench.run()
    failed = SampledToken("r#0@1", 0, failure="no number", may_be_ill=True)
    bench.engine.run_iteration(BATCH, lambda _: bench.engine.drop_sequence("r#0@1"), lambda error: None)
    bench.engine.reported(g.StepEnded(5, 1, (TOKEN,)))
    assert not any(isinstance(order, g.ClearGroupKv) for order in bench.links[0].orders)
    bench.engine.reported(g.StepEnded(5, 2, (failed,)))
    assert bench.links[0].orders[-2:] == [g.ClearGroupKv((4,)), g.DropGroupSequence("r#0@1")]
    assert bench.own.calls[-2:] == [("clear", (4,)), ("drop", "r#0@1")]


def test_with_one_stage_the_leader_samples_and_tells_the_others() -> None:
    """A failure is no token for them."""
    bench = Bench(1, 2)
    bench.run()
    bench.run()
    failed = SampledToken("s#0@1", 0, failure="no way on")
    bench.own.running[0][0]((TOKEN, failed))
    assert bench.links[0].orders[-1] == g.AppendGroupTokens(("r#0@1",), (7,))
    count = len(bench.links[0].orders)
    bench.own.running[1][0]((failed,))
    assert len(bench.links[0].orders) == count
    assert bench.finished == [(TOKEN, failed), (failed,)]
    assert bench.own.calls == []


def test_with_more_stages_the_last_one_samples() -> None:
    """Steps end in order when the sampling device says so; its tokens go to all others, the leader included."""
    bench = Bench(2, 2)
    assert bench.engine.max_in_flight == 2
    bench.run()
    bench.run()
    bench.own.running[0][0](())
    assert bench.finished == []
    bench.engine.reported(g.StepEnded(5, 1, (TOKEN,)))
    assert bench.finished == [(TOKEN,)]
    appended = g.AppendGroupTokens(("r#0@1",), (7,))
    assert [link.orders.count(appended) for link in bench.links] == [1, 0, 1]  # the second samples
    assert bench.own.calls == [("append", (("r#0@1", 7),))]
    bench.engine.reported(g.StepEnded(4, 2, (TOKEN,)))  # of an earlier group
    assert len(bench.finished) == 1
    bench.engine.reported(g.StepEnded(5, 2, ()))
    assert bench.finished[1:] == [()]


@pytest.mark.parametrize("how", ["a device reports it", "the leader's step fails", "the stream ends"])
def test_a_lost_member_ends_everything_once(how: str) -> None:
    """The exchange is broken, so that no member waits; no step ends afterwards, and nothing is ordered."""
    bench = Bench(1, 3)
    bench.run()
    swapped: list[Exception | None] = []
    bench.engine.swap_out((1,), (2,), swapped.append)
    bench.part.broken_by = 2
    for _ in range(2):
        if how == "a device reports it":
            bench.engine.reported(g.StepFailed(5, 1, "device-2 is gone"))
        elif how == "the leader's step fails":
            bench.own.running[0][1](RuntimeError("member 2 of the group is gone"))
        else:
            bench.engine.lose("device-2 is gone")
    assert bench.lost == ["device-2 is gone"]
    assert bench.part.is_broken and ("drop all",) in bench.own.calls
    assert [type(error) for error in swapped] == [EngineLostError]
    orders = [len(link.orders) for link in bench.links]
    bench.run()
    bench.engine.drop_sequence("r#0@1")
    bench.own.running[0][0]((TOKEN,))
    assert bench.finished == [] and [len(link.orders) for link in bench.links] == orders
    with pytest.raises(EngineLostError):
        asyncio.run(bench.engine.add_sequence(RECORD))


def test_a_new_group_knows_no_blocks_of_the_one_before() -> None:
    """Its devices are empty: a step names all blocks again."""
    bench = Bench(1, 2)
    bench.run()
    bench.engine.lose("gone")
    bench.engine.formed(cast(Any, bench.links), 6, ())
    assert bench.restored == 2
    bench.run()
    assert bench.links[0].orders[-1] == g.RunStep(2, (g.StepRow("r#0@1", 0, 3, 0, (4,)),))


def test_a_swap_ends_when_every_member_has_copied() -> None:
    bench = Bench(1, 3)
    ended: list[Exception | None] = []
    bench.engine.swap_out((1,), (2,), ended.append)
    order = g.SwapGroupKv(1, (1,), (2,), to_host=True)
    assert all(link.orders == [order] for link in bench.links)
    bench.own.swapping[0](None)
    bench.engine.reported(g.GroupSwapEnded(5, 1, ""))
    assert ended == []
    bench.engine.reported(g.GroupSwapEnded(5, 1, "OSError: no memory"))
    assert [str(error) for error in ended] == ["OSError: no memory"]


def test_a_group_that_broke_before_it_was_watched_says_so() -> None:
    """The role must not order anything of it."""
    bench = Bench(1, 2)
    bench.engine.watch(lambda reason: None, lambda: None)
    bench.engine.lose("gone")
    heard: list[str] = []
    bench.engine.watch(heard.append, lambda: None)
    assert heard == ["its group is not whole"]


NAMES = st.sampled_from(["a", "b", "d"])
TABLES = st.lists(st.integers(0, 9), max_size=5).map(tuple)


@given(st.lists(st.tuples(NAMES, TABLES, st.booleans()), max_size=30))
def test_the_changes_give_the_tables(events: list[tuple[str, tuple[int, ...], bool]]) -> None:
    """Whatever tables follow one another: grown, replaced, shrunk, forgotten."""
    tables = BlockTables()
    followed: dict[str, tuple[int, ...]] = {}
    for name, table, is_dropped in events:
        if is_dropped:
            tables.drop(name)
            followed.pop(name, None)
            continue
        (row,) = tables.rows(Batch((BatchRow(name, 0, 1, table),)))
        followed[name] = followed.get(name, ())[: row.kept_blocks] + row.new_block_ids
        assert followed[name] == table


def test_a_decode_names_no_block_twice() -> None:
    """A table that grew by one is one number."""
    tables = BlockTables()
    tables.rows(Batch((BatchRow("a", 0, 32, (7, 3)),)))
    (same,) = tables.rows(Batch((BatchRow("a", 33, 1, (7, 3, 5)),)))
    assert (same.kept_blocks, same.new_block_ids) == (2, (5,))
    (again,) = tables.rows(Batch((BatchRow("a", 34, 1, (7, 3, 5)),)))
    assert (again.kept_blocks, again.new_block_ids) == (3, ())
