"""Every change between two of SmolLM2's shapes, phases together: clients get the tokens of an undisturbed run, at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.answers import Answer
from tests.live.mesh import MODEL, LiveMesh
from tests.live.request_kinds import bodies
from tests.live.reshaped_requests import undisturbed
from tests.long.requests_of_all_kinds import MOST_TOKENS, assert_as_transformers
from tests.long.walk import Pair, ServedModel, Totals, begin_at, change_shape, tokens_for, walk

pytestmark = pytest.mark.timeout(600)

#: Its three KV heads allow one shard or three.
SHAPES = ((1, 1), (1, 3), (2, 1), (2, 3), (3, 1), (3, 3))


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """One worker of one process, and eight devices that wait; nine processes on two cores may be silent for long."""
    options, env = ("--parallel", "1,1,1", "--devices", "9"), {"SPOTWISE_GROUP_PATIENCE_S": "10"}
    with LiveMesh(tmp_path_factory.mktemp("all-reshapes"), *options, env=env) as live:
        yield live


@pytest.fixture(scope="module")
def expected(mesh: LiveMesh) -> dict[str, Answer]:
    """What the requests give where nothing happens, and transformers gives, too."""
    answers = undisturbed(mesh, MODEL, bodies(MOST_TOKENS))
    assert_as_transformers(answers)
    return answers


@pytest.mark.parametrize("pair", walk(SHAPES))
def test_a_change_of_shape_changes_no_token(
    pair: Pair, mesh: LiveMesh, smollm: ServedModel, expected: dict[str, Answer], totals: Totals
) -> None:
    """Of requests of all kinds, streamed and whole; all that outlast it are moved."""
    before, after = pair
    begin_at(mesh, before)
    decoding = bodies(tokens_for(before, MOST_TOKENS), whole=totals.changes % 2)
    totals.add(change_shape(mesh, smollm, after, decoding, expected))
