from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from spotwise.worker import runtime
from tests.unit.worker.twin_mesh import TwinMesh, TwinWorker


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


@pytest.fixture
async def mesh(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TwinMesh]:
    """A mesh without workers; its workers read their (fake) clock often."""
    monkeypatch.setattr(runtime, "TICK_S", 0.01)
    mesh = TwinMesh()
    await mesh.start()
    yield mesh
    await mesh.bus.close()


@pytest.fixture
async def worker(mesh: TwinMesh) -> AsyncIterator[TwinWorker]:
    async with mesh.worker("w") as worker:
        yield worker


@pytest.fixture
async def other(mesh: TwinMesh) -> AsyncIterator[TwinWorker]:
    async with mesh.worker("o") as worker:
        yield worker
