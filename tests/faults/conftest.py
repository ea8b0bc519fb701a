"""What the cases of this folder share: the table of their results, at the end of the run and in a file.

`SPOTWISE_FAULTS_REPORT` names the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.report import CaseResult, as_text
from tests.live.conftest import pytest_runtest_makereport as pytest_runtest_makereport
from tests.live.marks import mark_live

_RESULTS = pytest.StashKey[list[CaseResult]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_live(items, Path(__file__).parent)


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[[CaseResult], None]:
    """Takes the result of a case."""
    results = request.config.stash.setdefault(_RESULTS, [])

    def take(result: CaseResult) -> None:
        results.append(result)
        if (path := os.environ.get("SPOTWISE_FAULTS_REPORT")) is not None:
            Path(path).write_text(as_text(results))

    return take


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if results := config.stash.get(_RESULTS, []):
        terminalreporter.write_line(as_text(results))
