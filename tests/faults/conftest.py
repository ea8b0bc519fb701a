"""What the cases of this folder share: the table of their results, at the end of the run and in a file.

`SPOTWISE_FAULTS_REPORT` names the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.report import CaseResult, as_text
from tests.faults.request_matrix import MatrixRow, as_table
from tests.live.conftest import pytest_runtest_makereport as pytest_runtest_makereport
from tests.live.marks import mark_live

_RESULTS = pytest.StashKey[list[CaseResult]]()
_ROWS = pytest.StashKey[list[MatrixRow]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_live(items, Path(__file__).parent)


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[[CaseResult], None]:
    """Takes the result of a case."""
    results = request.config.stash.setdefault(_RESULTS, [])

    def take(result: CaseResult) -> None:
        results.append(result)
        _write_report(request.config)

    return take


@pytest.fixture
def record_row(request: pytest.FixtureRequest) -> Callable[[MatrixRow], None]:
    """Takes the row of a cell."""
    rows = request.config.stash.setdefault(_ROWS, [])

    def take(row: MatrixRow) -> None:
        rows.append(row)
        _write_report(request.config)

    return take


def _write_report(config: pytest.Config) -> None:
    if (path := os.environ.get("SPOTWISE_FAULTS_REPORT")) is not None:
        Path(path).write_text(_report(config))


def _report(config: pytest.Config) -> str:
    results, rows = config.stash.get(_RESULTS, []), config.stash.get(_ROWS, [])
    return "\n".join([*([as_text(results)] if results else []), *([as_table(rows)] if rows else [])])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if report := _report(config):
        terminalreporter.write_line(report)
