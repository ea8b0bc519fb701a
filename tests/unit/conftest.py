"""What unit tests of every kind share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Undo what a test, a command for instance, set up of the process's log: it is every later test's, too."""
    yield
    structlog.reset_defaults()
