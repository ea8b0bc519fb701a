"""A part of a later stage is loaded before its weights have arrived, where its group must serve early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from spotwise.core.messages.groups import FormGroup, LoadedWeights
from spotwise.core.messages.reshape import PlannedWeights
from spotwise.core.parallel.model_partition import ModelShare
from spotwise.engine.model.loading import EngineConfig
from spotwise.engine.native.shard import Shard
from spotwise.engine.parts.group_place import GroupPlace
from spotwise.engine.parts.weight_store import WeightStore
from spotwise.mesh.ports.ports import MeshError
from spotwise.worker.compute_threads import ComputeThreads
from spotwise.worker.groups.group_part import GroupPart
from spotwise.worker.groups.weight_fetch import FetchedWeights
from tests.contracts.waiting import until
from tests.unit.engine.tiny_models import llama_config, save_model

FORM = FormGroup(1, "w", 2, 1, 1, 0, "", 8, 0, 16, "float32", None, serves_early=True)


class Fetch:
    """Others have all, and give it when a test lets them."""

    def __init__(self, source: WeightStore, target: WeightStore, share: ModelShare) -> None:
        self.gives_all = True
        self.missing_bytes = sum(each.byte_count for each in target.missing(share))
        self.may_give = asyncio.Event()
        self.is_lost = False
        self.is_out_of_memory = False
        self._source, self._target, self._share = source, target, share

    async def run(self, on_arrival: Any = lambda: None) -> FetchedWeights:
        await self.may_give.wait()
        if self.is_out_of_memory:
            raise MemoryError
        given = [] if self.is_lost else self._target.missing(self._share)
        for each in given:
            self._target.expect_panels(each)[:] = self._source.export_panels(each.matrix, each.panels)
            self._target.panels_arrived(each)
        on_arrival()
        return FetchedWeights({"d9": sum(each.byte_count for each in given)}, 0.1, 0)


class Parts:
    """A part whose weights another store has."""

    def __init__(self, folder: Path) -> None:
        config = EngineConfig(folder, "float32", "cpu", threads=1)
        self.source, self.store = WeightStore(config), WeightStore(config)
        self.source.load(GroupPlace(Shard(), 1).share_of(self.source.structure.sketch))
        self.loads = asyncio.Lock()
        self.fetches: list[Fetch] = []
        self.part = GroupPart(self.store, self.loads, self._fetch, ComputeThreads(), cast(Any, None), 1.0)

    async def _fetch(self, share: ModelShare, plan: Sequence[PlannedWeights]) -> Any:
        self.store.learn(self.source.fused_layers)
        self.fetches.append(Fetch(self.source, self.store, share))
        return self.fetches[-1]

    @property
    def missing(self) -> bool:
        share = self.part.share
        assert share is not None
        return bool(self.store.missing(share))


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    found = Parts(save_model(llama_config(num_hidden_layers=4), tmp_path / "model"))
    yield found
    await found.part.close()


async def test_a_later_stage_is_there_before_its_weights(parts: Parts) -> None:
    """Nothing else loads until they are; the same position again needs nothing."""
    assert (await parts.part.load(FORM)).fetched_bytes == 0
    assert parts.missing and parts.loads.locked()
    parts.fetches[0].may_give.set()
    await asyncio.wait_for(parts.loads.acquire(), 5.0)
    parts.loads.release()
    assert not parts.missing
    assert await parts.part.load(replace(FORM, epoch=2)) == LoadedWeights()


@pytest.mark.parametrize("form", [replace(FORM, serves_early=False), replace(FORM, stage=0)])
async def test_others_wait_for_them(parts: Parts, form: FormGroup) -> None:
    loading = asyncio.create_task(parts.part.load(form))
    await until(lambda: bool(parts.fetches))
    await asyncio.sleep(0.3)
    assert not loading.done()
    parts.fetches[0].may_give.set()
    loaded = await loading
    assert not parts.missing
    assert (loaded.fetched_bytes, loaded.read_bytes) == (parts.fetches[0].missing_bytes, 0) != (0, 0)


async def test_what_others_lose_is_read_from_the_folder(parts: Parts) -> None:
    """After all, as without others."""
    await parts.part.load(FORM)
    parts.fetches[0].is_lost = True
    parts.fetches[0].may_give.set()
    await asyncio.wait_for(parts.loads.acquire(), 5.0)
    parts.loads.release()
    assert not parts.missing


async def test_another_position_does_not_wait_for_weights_of_the_one_before(parts: Parts) -> None:
    await parts.part.load(FORM)
    loading = asyncio.create_task(parts.part.load(replace(FORM, epoch=2, stages=4, stage=3)))
    await asyncio.sleep(0.3)
    assert loading.done() and len(parts.fetches) == 2
    parts.fetches[1].may_give.set()
    await loading
    assert await parts.part.load(replace(FORM, epoch=3)) and len(parts.fetches) == 3


async def test_weights_that_find_no_memory_refuse_the_part_in_one_sentence(parts: Parts) -> None:
    """Here those that other devices give: the leader hears why."""
    loading = asyncio.create_task(parts.part.load(replace(FORM, serves_early=False)))
    await until(lambda: bool(parts.fetches))
    parts.fetches[0].is_out_of_memory = True
    parts.fetches[0].may_give.set()
    with pytest.raises(
        MeshError, match=r"cannot be served: there is not enough memory for this process's part.*: lower"
    ):
        await loading
    assert not parts.loads.locked()
