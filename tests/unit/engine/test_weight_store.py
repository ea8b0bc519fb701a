"""A process keeps the panels that its parts need, once each; what they compute does not depend on where panels come from."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import transformers

from spotwise.core.parallel.model_partition import ModelShare
from spotwise.core.weights.inventory import PanelRange
from spotwise.engine.engine import Engine
from spotwise.engine.model.errors import ModelError
from spotwise.engine.model.loading import EngineConfig
from spotwise.engine.native.exchange import GroupBrokenError
from spotwise.engine.native.library import Kernels
from spotwise.engine.native.shard import Shard
from spotwise.engine.parts import weight_store
from spotwise.engine.parts.group_place import GroupPlace
from spotwise.engine.parts.matrix_form import FolderPanels, MatrixForm, MatrixRows
from spotwise.engine.parts.weight_flow import WeightFlow
from spotwise.engine.parts.weight_matrix import WeightMatrix
from spotwise.engine.parts.weight_store import ModelStructure, WeightStore
from tests.unit.engine.tiny_models import VOCAB_SIZE, Driver, llama_config, record, save_model
from tests.unit.engine.watched_engine import note_logits

WIDE = {"hidden_size": 256, "intermediate_size": 160, "num_attention_heads": 8, "num_key_value_heads": 4}
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "initializer_range": 0.2,
}
#: By name: model type, changes of its config, whether kernels compute it, and its fused layers.
KINDS: dict[str, tuple[str, dict[str, Any], bool, int]] = {
    "fused": ("llama", {}, True, 3),
    "fused, heads of no whole panel": ("llama", {"num_attention_heads": 6, "hidden_size": 96}, True, 3),
    "fused with biases": ("qwen2", {}, True, 3),
    "packed, not fused": ("llama", {"hidden_act": "relu"}, True, 0),
    "packed with biases": ("llama", {"attention_bias": True, "mlp_bias": True}, True, 0),
    "plain": ("llama", {}, False, 0),
    "tied head": ("llama", {"tie_word_embeddings": True}, True, 3),
    "transposed": ("gpt2", {}, True, 0),
    "experts": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, True, 0),
}


def save(model_type: str, changes: dict[str, Any], folder: Path) -> Path:
    return save_model(transformers.AutoConfig.for_model(model_type, **{**SHAPE, **changes}), folder)


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A Llama that can be cut into 4 stages of 4 shards."""
    return save_model(llama_config(num_hidden_layers=4, **WIDE), tmp_path / "wide")


def store_of(folder: Path, *, native: bool = True) -> WeightStore:
    return WeightStore(EngineConfig(folder, "float32", "cpu", kv_cache_bytes=4 << 20, threads=1, native=native))


def share_of(store: WeightStore, stages: int, shards: int, stage: int, shard: int) -> ModelShare:
    return GroupPlace(Shard(shard, shards, stage), stages).share_of(store.structure.sketch)


def panels_in(panels: Any) -> set[tuple[str, int]]:
    return {(name, panel) for name, ranges in panels.items() for each in ranges for panel in each}


def logits_of(engine: Engine) -> list[np.ndarray]:
    """Logits of a prompt of two chunks and some tokens after it."""
    noted = note_logits(engine)
    driver = Driver(engine, chunk_tokens=29)
    driver.add(record("a", [token % VOCAB_SIZE for token in range(1, 40)], max_new_tokens=6))
    driver.finish()
    engine.drop_all()
    del engine._forward  # the method again: what was noted stays as it is
    return noted


def same(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> bool:
    return len(ours) == len(theirs) > 0 and all(map(np.array_equal, ours, theirs))


def whole_part(store: WeightStore) -> Engine:
    return Engine.load_part(store, GroupPlace(Shard(), 1))


def test_panels_go_between_processes_with_the_same_kernels_only(
    best_kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version may lay them out in another way."""
    folder = save_model(llama_config(), tmp_path / "model")
    layout = store_of(folder, native=True).layout
    assert store_of(folder, native=True).layout == layout
    monkeypatch.setattr(weight_store, "sources_fingerprint", lambda: "another version")
    assert store_of(folder, native=True).layout != layout


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_imported_computes_what_was_exported(
    kind: str, best_kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, and the logits are those of an engine without a store; nothing is read from the folder."""
    model_type, changes, native, fused = KINDS[kind]
    folder = save(model_type, changes, tmp_path)
    source, target = store_of(folder, native=native), store_of(folder, native=native)
    expected = logits_of(Engine.load(source.config))
    part = whole_part(source)
    assert part.fused_layers == fused
    assert same(logits_of(part), expected)

    target.learn(source.fused_layers)
    share = share_of(target, 1, 1, 0, 0)
    assert target.layout == source.layout
    missing = target.missing(share)
    assert {each.matrix: (each.panels,) for each in missing} == target.needed(share) == source.held
    for each in missing:
        target.expect_panels(each)[:] = source.export_panels(each.matrix, each.panels)
        with pytest.raises(ValueError, match="are not here"):
            target.export_panels(each.matrix, each.panels)
        target.panels_arrived(each)
        assert target.export_panels(each.matrix, each.panels) == source.export_panels(each.matrix, each.panels)
    assert not target.missing(share)
    assert target.held_bytes == source.held_bytes
    monkeypatch.setattr(FolderPanels, "write", refuse)
    monkeypatch.setattr(ModelStructure, "tried_layer", refuse)
    assert same(logits_of(whole_part(target)), expected)


def refuse(*_: Any) -> None:
    raise AssertionError("weights are loaded that are there")


def test_parts_hold_the_union_of_their_panels(wide: Path, best_kernels: Kernels) -> None:
    """A second part adds what the first one lacks; a part whose panels are all there neither reads nor tries anything."""
    store = store_of(wide)
    shares = [share_of(store, 1, 2, 0, 0), share_of(store, 2, 1, 1, 0)]
    Engine.load_part(store, GroupPlace(Shard(0, 2, 0), 1))
    assert panels_in(store.held) == panels_in(store.needed(shares[0]))
    Engine.load_part(store, GroupPlace(Shard(0, 1, 1), 2))
    union = panels_in(store.needed(shares[0])) | panels_in(store.needed(shares[1]))
    assert panels_in(store.held) == union
    sizes = {name: form.panel_bytes for name, form in store.structure.forms.items()}
    assert store.held_bytes == sum(sizes[name] for name, _ in union)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FolderPanels, "write", refuse)
        patched.setattr(ModelStructure, "tried_layer", refuse)
        Engine.load_part(store, GroupPlace(Shard(0, 4, 1), 2))
        with pytest.raises(AssertionError, match="that are there"):
            Engine.load_part(store, GroupPlace(Shard(1, 2, 0), 2))


def test_a_tried_layer_is_completed_from_rows_of_the_folder(wide: Path, best_kernels: Kernels) -> None:
    """Panels that are packed alone equal those of a matrix that was packed whole."""
    whole, pieces = store_of(wide), store_of(wide)
    whole_part(whole)
    for shard in (2, 0, 3, 1):
        pieces.load(share_of(pieces, 1, 4, 0, shard))
    assert pieces.held == whole.held
    for name, (panels,) in whole.held.items():
        assert pieces.export_panels(name, panels) == whole.export_panels(name, panels)


def test_only_what_some_share_needs_is_kept(wide: Path, best_kernels: Kernels) -> None:
    store = store_of(wide)
    part = whole_part(store)
    expected = logits_of(part)
    kept = [share_of(store, 2, 2, 0, 1), share_of(store, 1, 4, 0, 0)]
    before = {name: bytes(store.export_panels(name, panels)) for name, (panels,) in store.held.items()}
    store.keep_only(kept)
    assert panels_in(store.held) == set().union(*(panels_in(store.needed(share)) for share in kept))
    for name, ranges in store.held.items():
        size = store.structure.forms[name].panel_bytes
        for panels in ranges:
            assert store.export_panels(name, panels) == before[name][panels.start * size : panels.stop * size]
    assert same(logits_of(whole_part(store)), expected)
    store.keep_only([])
    assert store.held == {} and store.held_bytes == 0


def test_panels_tell_how_often_they_were_given_back(wide: Path, best_kernels: Kernels) -> None:
    """Who reads them beside that can tell whether what was read is theirs."""
    store = store_of(wide)
    kept, name = share_of(store, 1, 2, 0, 0), "model.layers.1.down"
    for times in range(3):
        store.load(share_of(store, 1, 1, 0, 0))
        assert [store.times_dropped(name, panels) for panels in (range(4), range(4, 8), range(3, 5))] == [
            *(0, 4 * times),
            times,
        ]
        store.keep_only([kept])
    assert store.times_dropped("unknown", range(1)) == 0


def test_panels_that_are_not_there_are_neither_exported_nor_computed_with(wide: Path, best_kernels: Kernels) -> None:
    store = store_of(wide)
    share = share_of(store, 1, 2, 0, 0)
    store.load(share)
    name = "model.layers.1.down"
    form = store.structure.forms[name]
    with pytest.raises(ValueError, match=r"panels range\(0, 8\) of model.layers.1.down are not here"):
        store.export_panels(name, range(8))
    with pytest.raises(RuntimeError, match="not loaded"):
        store.packed(form, share_of(store, 1, 1, 0, 0))


def test_panels_that_are_due_keep_their_memory(wide: Path, best_kernels: Kernels) -> None:
    """Another process writes there while others beside them are dropped; given up, they are missing as before."""
    store = store_of(wide)
    share = share_of(store, 1, 2, 0, 0)
    store.load(share)
    due = next(each for each in store.missing(share_of(store, 1, 1, 0, 0)) if len(each.panels) > 1)
    half = PanelRange(due.matrix, due.panels[:1], due.panel_bytes)
    memory = store.expect_panels(half)
    memory[:] = bytes([7]) * half.byte_count
    store.keep_only([share_of(store, 1, 2, 0, 1)])
    store.keep_only([])
    assert bytes(memory) == bytes([7]) * half.byte_count
    store.give_up_panels(half)
    assert store.held == {}


def test_another_dtype_is_loaded_anew(wide: Path, best_kernels: Kernels) -> None:
    """A part keeps its weights; the dtype and block size that it has already are no change."""
    store = store_of(wide)
    part = whole_part(store)
    expected, held = logits_of(part), store.held
    store.adopt("float32", 16)
    assert store.held == held
    store.adopt("bfloat16", 16)
    assert store.held == {}
    assert whole_part(store).dtype == "bfloat16"
    assert same(logits_of(part), expected)


def test_memory_of_dropped_panels_is_given_back() -> None:
    """All but the pages that a dropped panel shares with one that is kept, which stays as it is."""
    form = MatrixForm("m", (MatrixRows("m.weight", 32 * 300),), 1000, torch.float32, is_packed=False)
    assert form.panel_bytes == 128_000  # 31.25 pages
    matrix = WeightMatrix(form, offset=24)

    def write(_: MatrixForm, panels: range, into: torch.Tensor) -> None:
        into[:] = torch.arange(panels.start, panels.stop)[:, None] + 1

    def resident() -> int:
        return int(psutil.Process().memory_info().rss)

    empty = resident()
    matrix.fill([range(10, 290)], write)
    assert matrix.held == (range(10, 290),) and matrix.held_bytes == 280 * form.panel_bytes
    full = resident()
    assert full - empty > 0.9 * matrix.held_bytes
    matrix.drop_all_but([range(20, 21), range(22, 23)])
    assert matrix.held == (range(20, 21), range(22, 23))
    assert full - resident() > 0.9 * 278 * form.panel_bytes
    for panel in (20, 22):
        assert set(matrix.plain([range(panel * 32, panel * 32 + 32)]).flatten().tolist()) == {panel + 1.0}
    assert matrix.lacks([range(19, 24)]) == (range(19, 20), range(21, 22), range(23, 24))
    matrix.fill([range(19, 24)], write)
    values = matrix.plain([range(19 * 32, 24 * 32)])
    assert torch.equal(values[::32, 0], torch.arange(20.0, 25.0))


def test_a_part_is_loaded_while_another_computes(wide: Path, best_kernels: Kernels) -> None:
    """Panels that are present do not change."""
    store = store_of(wide)
    part = whole_part(store)
    expected = logits_of(part)
    store.keep_only([share_of(store, 1, 1, 0, 0)])
    is_over = threading.Event()

    def load() -> None:
        while not is_over.is_set():
            for shard in range(4):
                Engine.load_part(store, GroupPlace(Shard(shard, 4, 1), 2))

    loading = threading.Thread(target=load)
    loading.start()
    try:
        for _ in range(5):
            assert same(logits_of(part), expected)
    finally:
        is_over.set()
        loading.join()


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_part_computes_while_its_weights_arrive(kind: str, best_kernels: Kernels, tmp_path: Path) -> None:
    """Each layer waits for its own; the logits are those of weights that were there before."""
    model_type, changes, native, _ = KINDS[kind]
    folder = save(model_type, changes, tmp_path)
    source, target = store_of(folder, native=native), store_of(folder, native=native)
    expected = logits_of(whole_part(source))
    target.learn(source.fused_layers)
    share = share_of(target, 1, 1, 0, 0)
    flow = WeightFlow()
    part = Engine.load_part(target, GroupPlace(Shard(), 1), flow=flow)
    logits: list[np.ndarray] = []
    computing = threading.Thread(target=lambda: logits.extend(logits_of(part)))
    computing.start()
    for each in target.missing(share):
        assert not logits
        target.expect_panels(each)[:] = source.export_panels(each.matrix, each.panels)
        target.panels_arrived(each)
        flow.arrived()
    flow.end()
    computing.join()
    assert same(logits, expected)


def test_a_part_whose_weights_do_not_arrive_fails(wide: Path, best_kernels: Kernels) -> None:
    """With the reason, and it does not wait for ever."""
    source, target = store_of(wide), store_of(wide)
    whole_part(source)
    target.learn(source.fused_layers)
    flow = WeightFlow()
    part = Engine.load_part(target, GroupPlace(Shard(), 1), flow=flow)
    threading.Timer(0.1, flow.end, ["no device has them"]).start()
    with pytest.raises(ModelError, match="did not arrive: no device has them"):
        logits_of(part)
    unwanted = Engine.load_part(target, GroupPlace(Shard(), 1), flow=WeightFlow(lambda: False))
    with pytest.raises(GroupBrokenError):
        logits_of(unwanted)
