"""Every architecture gives transformers' hidden states, pooled, whatever its layers add to plain attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from spotwise.core.requests.sampling import Pooling, SamplingParams
from spotwise.engine.engine import Engine
from tests.integration.test_architectures import MODELS, prompts, recording, tiny
from tests.unit.engine.tiny_models import Driver, load_engine, record

#: Relative to the largest number of an embedding.
TOLERANCE = 1e-4


def hidden_states(folder: Path) -> list[torch.Tensor]:
    """What transformers' model without its head gives for each prompt alone, `[tokens, hidden]`."""
    auto: Any = AutoModel
    model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts()]


def require_embeddings(engine: Engine, chunk_tokens: int, hidden: list[torch.Tensor]) -> None:
    """Prompts that arrive one by one, beside one that goes on decoding."""
    driver = Driver(engine, chunk_tokens)
    driver.add(record("decodes", prompts()[0], max_new_tokens=20))
    for index, prompt in enumerate(prompts()):
        for pooling in Pooling:
            driver.add(record(f"{pooling}-{index}", prompt, SamplingParams(pooling=pooling), max_new_tokens=1))
        driver.step()
    driver.finish()
    for index, states in enumerate(hidden):
        for pooling, wanted in ((Pooling.LAST, states[-1]), (Pooling.MEAN, states.mean(0))):
            (token,) = driver.results[f"{pooling}-{index}@1"]
            assert token.embedding is not None
            near = float(wanted.abs().max()) * TOLERANCE
            torch.testing.assert_close(torch.tensor(token.embedding), wanted, rtol=0.0, atol=near)


@pytest.mark.parametrize("name", MODELS)
def test_an_architecture_gives_transformers_hidden_states(name: str, tmp_path: Path) -> None:
    """Natively and in chunks of 29; by torch, whole, beside decodes that are replayed."""
    folder = tiny(name, tmp_path)
    hidden = hidden_states(folder)
    require_embeddings(load_engine(folder), 29, hidden)
    engine, capture = recording(folder)
    require_embeddings(engine, 1 << 30, hidden)
    assert capture.replays > 0
