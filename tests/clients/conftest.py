"""Clients of other people against one mesh, with `make test-clients`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.conftest import adapters as adapters
from tests.live.conftest import mesh as mesh
from tests.live.conftest import pytest_runtest_makereport as pytest_runtest_makereport
from tests.live.marks import mark_live


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_live(items, Path(__file__).parent, pytest.mark.clients)
