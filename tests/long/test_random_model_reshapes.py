"""Every change between two shapes of a random model with an even number of KV heads: no token changes with M of 2 and 4."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.answers import Answer
from tests.live.mesh import LiveMesh
from tests.live.oracle import mixed_prompts
from tests.live.reshaped_requests import undisturbed
from tests.live.tiny_checkpoint import FOUR_KV_HEADS, greedy_tokens, write_tiny_model
from tests.long.walk import Pair, ServedModel, Totals, begin_at, change_shape, tokens_for, walk

pytestmark = pytest.mark.timeout(600)

SHAPES = ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4))
#: Many, since a small model is fast.
MOST_TOKENS = 1200
PROMPTS = mixed_prompts(3, 200)


def bodies(new_tokens: int) -> dict[str, dict[str, Any]]:
    """Greedy, and seeded with four choices and log-probabilities."""
    seeded = {"temperature": 0.8, "top_p": 0.9, "seed": 7, "n": 4, "logprobs": 1}
    kinds: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0}, "seeded": seeded}
    return {
        kind: {"prompt": [*prompt], "max_tokens": new_tokens, **fields}
        for prompt, (kind, fields) in zip(PROMPTS, kinds.items(), strict=False)
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "random", **FOUR_KV_HEADS)


@pytest.fixture(scope="module")
def mesh(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """One worker of one process, and seven devices that wait; with a cache of its own, where the folder's name is new."""
    home = tmp_path_factory.mktemp("random-model-reshapes")
    env = {"SPOTWISE_CACHE": str(home / "cache"), "SPOTWISE_GROUP_PATIENCE_S": "10"}
    options = ("--model", str(folder), "--parallel", "1,1,1", "--devices", "8")
    with LiveMesh(home, *options, env=env) as live:
        yield live


@pytest.fixture(scope="module")
def expected(mesh: LiveMesh, folder: Path) -> dict[str, Answer]:
    """What the requests give where nothing happens, and transformers gives, too."""
    answers = undisturbed(mesh, folder.name, bodies(MOST_TOKENS))
    assert tuple(answers["greedy"].token_ids[0]) == greedy_tokens(folder, PROMPTS[0], MOST_TOKENS)
    return answers


@pytest.mark.parametrize("pair", walk(SHAPES))
def test_a_change_of_shape_changes_no_token(
    pair: Pair, mesh: LiveMesh, folder: Path, expected: dict[str, Answer], totals: Totals
) -> None:
    """Each shape is entered from every other one, and left for every other one."""
    before, after = pair
    begin_at(mesh, before)
    decoding = bodies(tokens_for(before, MOST_TOKENS))
    totals.add(change_shape(mesh, ServedModel(folder.name, folder), after, decoding, expected))
