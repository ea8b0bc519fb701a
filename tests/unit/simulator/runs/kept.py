"""What tests of runs in a file share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spotwise.simulator.searches import kept_runs


class Counting:
    """Simulates, and keeps the cases."""

    def __init__(self, simulate: Callable[[Any], Any]) -> None:
        self.runs: list[Any] = []
        self._simulate = simulate

    def __call__(self, case: Any) -> Any:
        self.runs.append(case)
        return self._simulate(case)


def forget() -> None:
    kept_runs._read.cache_clear()
    kept_runs._contents.cache_clear()
    kept_runs._code.cache_clear()
    kept_runs._adapter.cache_clear()
