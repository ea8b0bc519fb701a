"""Run folders of benchmarks: kept where they failed, removed where they were interrupted or killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotwise.cli.bench.servers import own_run_folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPOTWISE_HOME", str(tmp_path))
    return tmp_path / "run"


def left(home: Path) -> list[str]:
    return sorted(path.name for path in home.iterdir())


def test_an_interrupted_benchmark_leaves_no_folder(home: Path) -> None:
    with pytest.raises(KeyboardInterrupt), own_run_folder("mesh"):
        raise KeyboardInterrupt
    assert left(home) == []


def test_the_folder_of_a_killed_benchmark_goes_with_the_next_start(home: Path) -> None:
    """Not one that failed, whose logs are kept, nor one that runs, nor a mesh's."""
    ended = next(pid for pid in range(4_000_000, 5_000_000) if not Path(f"/proc/{pid}").exists())
    kept = [f"bench-mesh-{os.getpid()}-1000000", "default"]  # this process makes some before and after it
    for name in (f"bench-mesh-{ended}-0", *kept):
        (home / name).mkdir(parents=True)
    with pytest.raises(ValueError, match="it failed"), own_run_folder("mesh") as failed:
        raise ValueError("it failed")
    with own_run_folder("mesh"):
        pass
    assert left(home) == sorted([*kept, failed.name])
