"""A model whose KV heads allow two and four shards changes its shape while it answers: the tokens of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotwise.core.parallel.config import ParallelConfig
from tests.live.answers import Answer
from tests.live.mesh import LiveMesh
from tests.live.oracle import mixed_prompts
from tests.live.reshaped_requests import assert_undisturbed, reshaped, undisturbed, wait_for_shape
from tests.live.tiny_checkpoint import FOUR_KV_HEADS, greedy_tokens, write_tiny_model

PROMPTS = mixed_prompts(4, 200)
#: Many, since a small model is fast.
NEW_TOKENS = 600
BODIES: dict[str, dict[str, Any]] = {
    "greedy": {"prompt": [*PROMPTS[0]], "max_tokens": NEW_TOKENS, "temperature": 0},
    "seeded": {"prompt": [*PROMPTS[1]], "max_tokens": NEW_TOKENS, "temperature": 0.8, "seed": 7, "n": 4, "logprobs": 1},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that the mesh serves."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "even", **FOUR_KV_HEADS)


@pytest.fixture(scope="module")
def mesh(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """One worker of two shards, and two devices that wait; with a cache of its own, where the model's name is new."""
    home = tmp_path_factory.mktemp("even-shards")
    env = {"SPOTWISE_CACHE": str(home / "cache"), "SPOTWISE_GROUP_PATIENCE_S": "5"}
    with LiveMesh(home, "--model", str(folder), "--parallel", "1,1,2", "--devices", "4", env=env) as live:
        yield live


@pytest.fixture(scope="module")
def expected(mesh: LiveMesh, folder: Path) -> dict[str, Answer]:
    """What the requests give where nothing happens."""
    answers = undisturbed(mesh, folder.name, BODIES)
    assert tuple(answers["greedy"].token_ids[0]) == greedy_tokens(folder, PROMPTS[0], NEW_TOKENS)
    return answers


@pytest.mark.parametrize("config", ["1,1,4", "1,2,2"])
def test_two_and_four_shards_give_the_same_tokens(
    config: str, mesh: LiveMesh, folder: Path, expected: dict[str, Answer]
) -> None:
    """In one attempt, with their KV."""
    target = ParallelConfig.parse(config)
    assert_undisturbed(reshaped(mesh, folder.name, target, BODIES), BODIES, expected)
    wait_for_shape(mesh, target)
    mesh.wait_until_idle()
