"""What an installation carries of the benchmarks."""

from __future__ import annotations

from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[3]


def test_the_wheel_has_the_load_benchmark_only() -> None:
    """Developer benchmarks need a checkout; `spotwise bench load` needs none."""
    carried = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert "spotwise/cli/bench/load.py" in carried
    assert [path for path in carried if path.startswith(("spotwise/benchmarks/", "benchmarks/", "tests/"))] == []
