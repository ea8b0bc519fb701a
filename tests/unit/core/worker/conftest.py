"""What tests of the worker's role share."""

from __future__ import annotations

import pytest

from tests.unit.core.worker.bench import WorkerBench


@pytest.fixture
def bench() -> WorkerBench:
    """A worker with the defaults of its bench."""
    return WorkerBench()
