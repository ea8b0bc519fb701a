"""Models whose weights stay quantised: the tokens of transformers with the same file dequantised, whole and in parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from transformers import AutoModelForCausalLM

from spotwise.core.parallel.model_partition import ModelShare
from spotwise.engine.block_kinds import BLOCK_KINDS
from spotwise.engine.engine import Engine
from spotwise.engine.model.checkpoint import read_checkpoint
from spotwise.engine.model.errors import ModelError
from spotwise.engine.model.loading import EngineConfig
from spotwise.engine.model.model_store import resolve_model
from spotwise.engine.native.shard import Shard
from spotwise.engine.parts.group_place import GroupPlace
from spotwise.engine.parts.matrix_form import FolderPanels
from spotwise.engine.parts.part_sizes import model_shape
from spotwise.engine.parts.weight_store import ModelStructure, WeightStore
from tests.unit.engine.quantised_models import HIDDEN, write_quantised
from tests.unit.engine.tiny_models import Driver, record

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
NEW_TOKENS = 16

KindOf = Callable[[str], str]


def of_one_kind(kind: str, _: str) -> str:
    return kind


def like_llama_cpp(name: str) -> str:
    """Kinds as its K-mixtures have them: values and `down` in more bits than the others."""
    return "Q6_K" if any(part in name for part in ("attn_v", "ffn_down", "token_embd")) else "Q4_K"


def with_other_kinds(name: str) -> str:
    """Some that no kernel takes, others that cannot be stacked."""
    if name == "blk.0.ffn_down.weight":
        return "Q5_0"
    return {"blk.0.ffn_gate.weight": "Q8_0", "blk.1.attn_v.weight": "F32"}.get(name, "Q4_1")


MODELS: dict[str, KindOf] = {
    **{kind: partial(of_one_kind, kind) for kind in BLOCK_KINDS},
    "K mixture": like_llama_cpp,
    "other kinds": with_other_kinds,
}


def folders(tmp_path: Path, kind_of: KindOf, *, is_tied: bool = False) -> tuple[Path, Path]:
    """Return the folder with blocks, and the one with transformers' numbers."""
    file = write_quantised(tmp_path / "tiny.gguf", kind_of, is_tied=is_tied)
    return tuple(resolve_model(str(file), tmp_path / "cache", widens=widens).path for widens in (False, True))  # type: ignore[return-value]


def config(folder: Path, dtype: str = "float32", **changes: Any) -> EngineConfig:
    return EngineConfig(folder, dtype, "cpu", kv_cache_bytes=4 << 20, threads=1, **changes)


def tokens_of(engine: Engine) -> list[int]:
    driver = Driver(engine)
    driver.add(request := record("a", PROMPT, max_new_tokens=NEW_TOKENS))
    while driver.step():
        pass
    return [token.token_id for token in driver.results[request.sequence_id]]


def greedy(folder: Path) -> list[int]:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    given = torch.tensor([PROMPT])
    out = model.generate(
        given, do_sample=False, min_new_tokens=NEW_TOKENS, max_new_tokens=NEW_TOKENS, eos_token_id=None
    )
    return [int(token) for token in out[0, len(PROMPT) :]]


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_transformers_with_the_file_dequantised(name: str, tmp_path: Path) -> None:
    blocks, widened = folders(tmp_path, MODELS[name], is_tied=name == "Q8_0")
    expected = greedy(widened)
    kept = Engine.load(config(blocks))
    assert kept.fused_layers == 2
    assert tokens_of(kept) == expected
    assert tokens_of(Engine.load(config(blocks, weights="widen"))) == expected
    assert tokens_of(Engine.load(config(blocks, native=False))) == expected
    group = Engine.load_part(WeightStore(config(blocks)), GroupPlace(Shard(), 1))
    assert tokens_of(group) == expected


@pytest.mark.parametrize("name", ["Q4_1", "K mixture"])
def test_tokens_in_bfloat16_are_those_of_the_widened_weights(name: str, tmp_path: Path) -> None:
    blocks, widened = folders(tmp_path, MODELS[name])
    expected = tokens_of(Engine.load(config(widened, "bfloat16")))
    assert tokens_of(Engine.load(config(blocks, "bfloat16"))) == expected
    assert tokens_of(Engine.load(config(blocks, "bfloat16", weights="widen"))) == expected


@pytest.mark.parametrize("weights", ["keep", "widen"])
@pytest.mark.parametrize("is_mapped", [False, True], ids=["written", "mapped"])
def test_tokens_are_the_same_from_a_file_that_processes_share(weights: str, is_mapped: bool, tmp_path: Path) -> None:
    """Of the first process, which writes it, and of the next."""
    blocks, widened = folders(tmp_path, MODELS["Q4_1"], is_tied=True)
    shared = config(blocks, "bfloat16", weights=weights, shared_weights=tmp_path / "weights")
    engines = [Engine.load(shared) for _ in range(1 + is_mapped)]
    assert tokens_of(engines[-1]) == tokens_of(Engine.load(config(widened, "bfloat16")))


def test_a_folder_has_the_blocks_of_the_file(tmp_path: Path) -> None:
    """As many bytes, the rows in transformers' order; what is of another kind is said once, and widened."""
    with capture_logs() as logs:
        blocks, _ = folders(tmp_path, with_other_kinds)
    kinds = json.loads((blocks / "config.json").read_text())["quantization_config"]["kinds"]
    assert kinds["model.layers.0.mlp.gate_proj.weight"] == "Q8_0"
    assert kinds["model.layers.1.self_attn.q_proj.weight"] == "Q4_1"
    stored = {tensor.name: tensor for tensor in read_checkpoint(blocks).tensors}
    assert stored["model.layers.1.self_attn.q_proj.weight"].shape == (HIDDEN, HIDDEN // 32 * 20)
    assert stored["model.layers.0.mlp.down_proj.weight"].dtype == "F32"
    (said,) = [entry for entry in logs if entry["event"] == "gguf_weights_widened"]
    assert said["kinds"] == {"Q5_0": 1}


@pytest.mark.parametrize("shards", [2, 4])
def test_each_shard_has_its_panels_of_the_blocks(shards: int, tmp_path: Path) -> None:
    """Its bytes are those of the whole, and there are as many in all."""
    blocks, _ = folders(tmp_path, like_llama_cpp)
    store = WeightStore(config(blocks))
    sketch = store.structure.sketch
    shares = [GroupPlace(Shard(index, shards), 1).share_of(sketch) for index in range(shards)]
    store.load(whole := GroupPlace(Shard(), 1).share_of(sketch))
    held = {index: _held(config(blocks), share) for index, share in enumerate(shares)}
    for name, panels in store.needed(whole).items():
        found: dict[int, bytes] = {}
        for index, share in enumerate(shares):
            for own in held[index].needed(share).get(name, ()):
                for panel in own:
                    found[panel] = bytes(held[index].export_panels(name, range(panel, panel + 1)))
        for own in panels:
            for panel in own:
                assert found[panel] == bytes(store.export_panels(name, range(panel, panel + 1))), (name, panel)


def _held(configured: EngineConfig, share: ModelShare) -> WeightStore:
    store = WeightStore(configured)
    store.load(share)
    return store


def test_what_another_process_sends_are_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the widened bytes at most, from which the same tokens are computed; nothing is read from the folder."""
    blocks, widened = folders(tmp_path, like_llama_cpp)
    source, target, wide = (WeightStore(config(folder)) for folder in (blocks, blocks, widened))
    expected = tokens_of(Engine.load_part(source, GroupPlace(Shard(), 1)))
    target.learn(source.fused_layers)
    share = GroupPlace(Shard(), 1).share_of(target.structure.sketch)
    assert target.layout == source.layout != wide.layout
    missing = target.missing(share)
    assert sum(each.byte_count for each in missing) * 4 < sum(each.byte_count for each in wide.missing(share))
    for each in missing:
        target.expect_panels(each)[:] = source.export_panels(each.matrix, each.panels)
        target.panels_arrived(each)
    monkeypatch.setattr(FolderPanels, "write", _refuse)
    monkeypatch.setattr(ModelStructure, "tried_layer", _refuse)
    assert tokens_of(Engine.load_part(target, GroupPlace(Shard(), 1))) == expected


def _refuse(*_: Any) -> None:
    raise AssertionError("weights are loaded that are there")


def test_the_planner_counts_the_bytes_of_blocks(tmp_path: Path) -> None:
    blocks, widened = folders(tmp_path, MODELS["Q4_1"])
    kept, wide = (model_shape(WeightStore(config(folder))) for folder in (blocks, widened))
    assert kept.layer_bytes == pytest.approx(wide.layer_bytes * 20 / 128, rel=0.01)
    assert kept.head_bytes == wide.head_bytes * 20 // 128
    assert model_shape(WeightStore(config(blocks, weights="widen"))).layer_bytes == wide.layer_bytes


def test_processes_share_blocks(tmp_path: Path) -> None:
    """The file of packed weights is as large as the blocks; a second engine maps it, and has the same tokens."""
    blocks, _ = folders(tmp_path, MODELS["Q4_1"])
    shared = tmp_path / "shared"
    first = tokens_of(Engine.load(config(blocks, shared_weights=shared)))
    (file,) = shared.glob("*.safetensors")
    assert file.stat().st_size < (blocks / "model.safetensors").stat().st_size * 1.2
    with capture_logs() as logs:
        assert tokens_of(Engine.load(config(blocks, shared_weights=shared))) == first
    (mapped,) = [entry for entry in logs if entry["event"] == "weights_mapped"]
    assert mapped["own_bytes"] == 0


def test_without_kernels_weights_are_widened_and_the_log_says_so(tmp_path: Path) -> None:
    blocks, _ = folders(tmp_path, MODELS["Q4_0"])
    with capture_logs() as logs:
        Engine.load(config(blocks, native=False))
    assert [entry["event"] for entry in logs].count("weights_widened") == 1


@pytest.mark.parametrize("kind", ["Q9_9", "Q8_0"])
def test_blocks_of_another_kind_than_the_config_says_are_refused(kind: str, tmp_path: Path) -> None:
    blocks, _ = folders(tmp_path, MODELS["Q4_1"])
    described = json.loads((blocks / "config.json").read_text())
    name = "model.layers.1.mlp.down_proj.weight"
    described["quantization_config"]["kinds"][name] = kind
    (blocks / "config.json").write_text(json.dumps(described))
    with pytest.raises(ModelError, match=r"down_proj\.weight"):
        Engine.load(config(blocks))
