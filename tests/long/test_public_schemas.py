"""Documents of all the schemas of a public set that can be followed: each that ends is valid, for 200 of them at least."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from _pytest.terminal import TerminalReporter

from tests.live.mesh import ONE_MIXED, LiveMesh
from tests.live.public_schemas import SchemaAnswers, ask, closing_bias, public_schemas

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    with LiveMesh(tmp_path_factory.mktemp("schemas"), *ONE_MIXED, "--kv-cache", "1GiB") as live:
        yield live


@pytest.fixture
def terminal(request: pytest.FixtureRequest) -> TerminalReporter:
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    assert isinstance(reporter, TerminalReporter)
    return reporter


def test_every_document_that_ends_fits_its_schema(mesh: LiveMesh, terminal: TerminalReporter) -> None:
    """As short as they can be, by the most probable tokens; then two drawn ones of each, longer."""
    schemas, answers = public_schemas(), SchemaAnswers()
    asyncio.run(ask(mesh, schemas, answers, temperature=0, max_tokens=400, logit_bias=closing_bias(8.0, '"}]')))
    followed = {name: schema for name, schema in schemas.items() if name not in answers.refused}
    drawn = {"temperature": 1.0, "seed": 5, "n": 2, "max_tokens": 200, "logit_bias": closing_bias(4.0, "}]")}
    asyncio.run(ask(mesh, followed, answers, **drawn))
    terminal.write_line(f"\n{answers}")
    assert answers.unfit == []
    assert len(answers.ended) >= 200, str(answers)
