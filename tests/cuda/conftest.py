"""Tests that run on a GPU, with `make test-cuda`; without one they are skipped, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device"))


@pytest.fixture
def device() -> torch.device:
    """The last device: what works on the first alone is found where there are two."""
    return torch.device("cuda", torch.cuda.device_count() - 1)
