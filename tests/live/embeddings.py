"""Embeddings of a real mesh, beside transformers' hidden states, pooled."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from spotwise.core.requests.sampling import Pooling
from tests.live.mesh import MODEL, LiveMesh
from tests.live.oracle import hidden_states, mixed_prompts, model_folder

#: Turns the embeddings of a mesh's model on.
MEANS = {"SPOTWISE_EMBEDDING_POOLING": "mean"}
#: Of the unit length that all numbers of an embedding have together.
TOLERANCE = 1e-4


def folder_with_embeddings(parent: Path) -> Path:
    """Write a copy of the default model's folder, by links, that says as an embedding model does: last token, normalised."""
    folder = parent / MODEL
    (folder / "1_Pooling").mkdir(parents=True)
    for file in model_folder().iterdir():
        (folder / file.name).symlink_to(file)
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    return folder


def expected(prompt: tuple[int, ...], pooling: Pooling) -> torch.Tensor:
    """What transformers gives for a prompt alone, normalised."""
    hidden = hidden_states(prompt)
    return torch.nn.functional.normalize(hidden[-1] if pooling is Pooling.LAST else hidden.mean(0), dim=0)


def require_near(embedding: Sequence[float], wanted: torch.Tensor) -> None:
    """Close, and of the length 1."""
    assert math.hypot(*embedding) == pytest.approx(1, rel=1e-5)
    assert float((torch.tensor(embedding) - wanted).norm()) < TOLERANCE


def embeds_at_once(mesh: LiveMesh, pooling: Pooling, count: int = 8, longest: int = 300) -> None:
    """Several prompts of one request have the oracle's embeddings."""
    prompts = mixed_prompts(8, longest)[:count]
    require_embeddings(
        mesh.client().embeddings.create(model=MODEL, input=[[*prompt] for prompt in prompts]), prompts, pooling
    )
    mesh.wait_until_idle()


def require_embeddings(answer: Any, prompts: Sequence[tuple[int, ...]], pooling: Pooling) -> None:
    """In the prompts' order, with their tokens counted."""
    assert [each.index for each in answer.data] == [*range(len(prompts))]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, prompts))
    for prompt, each in zip(prompts, answer.data, strict=True):
        require_near(each.embedding, expected(prompt, pooling))
