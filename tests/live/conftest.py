"""Meshes that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.adapters import ATTENTION, save_adapter
from tests.live.embeddings import MEANS
from tests.live.marks import mark_live
from tests.live.mesh import LiveMesh
from tests.live.oracle import model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_live(items, Path(__file__).parent)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the processes of a failed test's mesh said last: nothing else is left of a run on another machine."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, LiveMesh):
                report.sections.append((f"logs of {name}", value.log_ends()))
    return report


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of the shared mesh's adapters, by name."""
    folder = tmp_path_factory.mktemp("adapters")
    return {
        "all-layers": save_adapter(folder / "all", model(), seed=1, rank=16, effect=0.15),
        "attention": save_adapter(folder / "attention", model(), seed=2, targets=ATTENTION, effect=0.15),
    }


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory, adapters: dict[str, Path]) -> Iterator[LiveMesh]:
    """One prompt worker, one token worker, and two adapters of the model; with embeddings."""
    options = [option for name, folder in adapters.items() for option in ("--adapter", f"{name}={folder}")]
    with LiveMesh(tmp_path_factory.mktemp("mesh"), *options, env=MEANS) as live:
        yield live


@pytest.fixture
def own_mesh(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LiveMesh]:
    """A mesh of the test's own, started by it; `indirect` parameters are its options."""
    live = LiveMesh(tmp_path, *getattr(request, "param", ()))
    yield live
    live.down()
