"""LoRA adapters in the engine: the tokens of a model with the adapter merged, for several adapters and none in one batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotwise.core.requests.names import AdapterRef
from spotwise.engine.engine import Engine
from spotwise.engine.model.adapter_files import read_adapter
from spotwise.engine.model.loading import EngineConfig
from tests.adapters import ALL, ATTENTION, base_model, greedy, merged, save_adapter
from tests.integration.test_engine_equality import prompts_of_mixed_lengths
from tests.unit.engine.tiny_models import Driver, llama_config, record, save_model

NEW_TOKENS = 16
#: By name, what each adapter of these tests is made with; odd ranks and ranks above a panel of the kernels among them.
KINDS: dict[str, dict[str, Any]] = {
    "all": {"seed": 1, "rank": 8},
    "attention": {"seed": 2, "targets": ATTENTION, "rank": 3, "use_rslora": True},
    "wide": {"seed": 3, "targets": ("v_proj", "up_proj"), "rank": 40},
    "patterns": {"seed": 4, "targets": ALL, "rank_pattern": {"layers.1.*": 5}, "alpha_pattern": {"q_proj": 3}},
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(llama_config(), tmp_path_factory.mktemp("adapters") / "llama")


@pytest.fixture(scope="module")
def oracle(llama: Path) -> Any:
    return base_model(llama)


@pytest.fixture(scope="module")
def folders(llama: Path, oracle: Any) -> dict[str, Path]:
    return {name: save_adapter(llama.parent / name, oracle, **kind) for name, kind in KINDS.items()}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """The second one fills more than one window of rows with an adapter, and the third is not alone in its iteration."""
    prompts = prompts_of_mixed_lengths(15, 120)
    return [prompts[0], (prompts[1] * 300)[:400], *prompts[2:]]


@pytest.fixture(scope="module")
def expected(oracle: Any, folders: dict[str, Path], prompts: list[list[int]]) -> list[list[int]]:
    """What each prompt gets with its adapter, alone: the first with none, the second with the first adapter, and so on."""
    merges = [None, *folders.values()]
    return [alone(oracle, merges[index % len(merges)], prompt) for index, prompt in enumerate(prompts)]


def alone(oracle: Any, folder: Path | None, prompt: list[int]) -> list[int]:
    with merged(oracle, folder):
        return greedy(oracle, prompt, NEW_TOKENS)


def engine_with(model: Path, folders: dict[str, Path], *, native: bool, **options: Any) -> Engine:
    config = EngineConfig(model, "float32", "cpu", 4 << 20, threads=1, native=native, adapters=tuple(folders.items()))
    return Engine.load(replace(config, **options))


def refs_of(folders: dict[str, Path]) -> list[AdapterRef | None]:
    return [None, *(AdapterRef(name, read_adapter(name, folder).digest) for name, folder in folders.items())]


@pytest.mark.parametrize("native", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("chunk_tokens", [1 << 30, 23], ids=["whole", "chunked"])
def test_adapters_in_one_batch_give_what_merged_models_give(
    llama: Path,
    folders: dict[str, Path],
    prompts: list[list[int]],
    expected: list[list[int]],
    chunk_tokens: int,
    native: bool,
) -> None:
    """Prompts of four adapters and of none arrive three at a time and share iterations, prefills and decodes alike."""
    engine = engine_with(llama, folders, native=native)
    assert engine.fused_layers == (3 if native else 0)
    refs = refs_of(folders)
    driver = Driver(engine, chunk_tokens)
    for index, prompt in enumerate(prompts):
        request = record(str(index), prompt, max_new_tokens=NEW_TOKENS)
        driver.add(replace(request, adapter=refs[index % len(refs)]))
        if index % 3 == 2:
            driver.step()
    results = driver.finish()
    assert driver.largest_mix[0] >= 3
    assert [results[f"{index}@1"] for index in range(len(prompts))] == expected


def test_each_adapter_changes_the_answer(oracle: Any, folders: dict[str, Path], prompts: list[list[int]]) -> None:
    """The adapters of these tests have an effect, each its own: the tests of this file would fail without it."""
    answers = [tuple(alone(oracle, folder, prompts[0])) for folder in (None, *folders.values())]
    assert len(set(answers)) == len(answers)
