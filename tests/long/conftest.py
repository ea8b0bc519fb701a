"""Suites of many minutes, with `make test-long`: a mesh each, and progress by test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.conftest import pytest_runtest_makereport as pytest_runtest_makereport
from tests.live.marks import mark_live
from tests.live.mesh import MODEL
from tests.live.oracle import model_folder
from tests.long.walk import ServedModel, Totals

_TOTALS = pytest.StashKey[dict[str, Totals]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_live(items, Path(__file__).parent, pytest.mark.long)


@pytest.fixture(scope="session")
def smollm() -> ServedModel:
    """The default model."""
    return ServedModel(MODEL, model_folder())


@pytest.fixture(scope="module")
def totals(request: pytest.FixtureRequest) -> Totals:
    """What a file's tests have compared; shown at the end of all."""
    return request.config.stash.setdefault(_TOTALS, {}).setdefault(request.node.name, Totals())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name, counted in config.stash.get(_TOTALS, {}).items():
        if counted.changes:
            terminalreporter.write_line(f"{name}: {counted}")
