"""The comparison with transformers finds what is the same, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwise.benchmarks import engine_agreement
from spotwise.benchmarks.engine_agreement import Agreement, compare
from spotwise.engine.model.loading import EngineConfig
from tests.unit.engine.tiny_models import llama_config, save_model

PROMPTS = [[1, 2, 3], [50, 60, 70, 80], list(range(40))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(llama_config(), tmp_path_factory.mktemp("agreement"))


def test_in_float32_everything_agrees(folder: Path) -> None:
    """Every position of every prompt, and every text to its end; the sums grow prompt by prompt."""
    config = EngineConfig(folder, "float32", "cpu", 4 << 20, threads=1)
    assert list(compare(config, PROMPTS, 8)) == [
        Agreement(8, 8, 1, 1),
        Agreement(16, 16, 2, 2),
        Agreement(24, 24, 3, 3),
    ]


def test_a_difference_is_counted_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference that answers with another token at one position differs there, and in its text."""
    original = engine_agreement._continued

    def with_an_error(reference: object, prompt: list[int], new_tokens: int) -> list[int]:
        text = original(reference, prompt, new_tokens)
        return [*text[:-1], (text[-1] + 1) % 200]

    monkeypatch.setattr(engine_agreement, "_continued", with_an_error)
    config = EngineConfig(folder, "float32", "cpu", 4 << 20, threads=1)
    assert list(compare(config, PROMPTS[:1], 8)) == [Agreement(8, 7, 0, 1)]
