"""Every change between two of SmolLM2's shapes, phases apart: requests decode, and prompts are being computed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotwise.core.parallel.config import ParallelConfig
from tests.live.answers import Answer
from tests.live.mesh import MODEL, LiveMesh
from tests.live.request_kinds import bodies
from tests.live.reshaped_requests import undisturbed
from tests.long.requests_of_all_kinds import MOST_TOKENS, assert_as_transformers, long_prompts
from tests.long.walk import Pair, ServedModel, Totals, begin_at, change_shape, walk

pytestmark = pytest.mark.timeout(600)

SHAPES = ((1, 1), (1, 3), (2, 1), (2, 3), (3, 1), (3, 3))
#: Where they start; the planner itself gives both pools one shape.
UNEQUAL = "1,1,3+1,2,1"
FIRST = ParallelConfig.parse("1+1,1,1")


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """A prompt worker of three shards, a token worker of two stages; the largest shape takes eighteen devices."""
    options, env = ("--parallel", UNEQUAL, "--devices", "18"), {"SPOTWISE_GROUP_PATIENCE_S": "20"}
    with LiveMesh(tmp_path_factory.mktemp("all-split-reshapes"), *options, env=env) as live:
        yield live


@pytest.fixture(scope="module")
def expected(mesh: LiveMesh) -> dict[str, Answer]:
    """What the requests give where nothing happens, and transformers gives, too."""
    answers = undisturbed(mesh, MODEL, bodies(MOST_TOKENS))
    assert_as_transformers(answers)
    for number in range(2):
        answers |= undisturbed(mesh, MODEL, long_prompts(number))
    return answers


def test_pools_of_unequal_shapes_become_equal(
    mesh: LiveMesh, smollm: ServedModel, expected: dict[str, Answer], totals: Totals
) -> None:
    """With requests in both."""
    decoding = bodies(MOST_TOKENS * 3 // 4, whole=0)
    totals.add(change_shape(mesh, smollm, FIRST, decoding, expected, long_prompts(1)))


@pytest.mark.parametrize("pair", walk(SHAPES, prompt_groups=1))
def test_a_change_of_shape_changes_no_token(
    pair: Pair, mesh: LiveMesh, smollm: ServedModel, expected: dict[str, Answer], totals: Totals
) -> None:
    """Of requests that decode, and of prompts that are on their way from the old prompt group when it begins."""
    before, after = pair
    begin_at(mesh, before)
    decoding = bodies(MOST_TOKENS, whole=totals.changes % 2)
    done = change_shape(mesh, smollm, after, decoding, expected, long_prompts(totals.changes % 2))
    totals.add(done)
    assert done.prompts_in_flight(), "no prompt was computed any more when the re-shape began; make them longer"
