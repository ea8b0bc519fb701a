"""What an installation carries of benchmarks and studies."""

from __future__ import annotations

from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[3]


def test_the_wheel_has_no_developer_benchmark_and_no_study() -> None:
    """Developer benchmarks and papers' studies need a checkout; `spotwise bench load` and `simulate run` need none."""
    carried = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {"spotwise/cli/bench/load.py", "spotwise/cli/simulate/run.py"} <= carried
    left = ("spotwise/benchmarks/", "benchmarks/", "spotwise/studies/", "studies/", "tests/")
    assert [path for path in carried if path.startswith(left)] == []
