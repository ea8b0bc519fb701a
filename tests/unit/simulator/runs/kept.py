"""What tests of runs in a file share."""

from __future__ import annotations

from spotwise.simulator.searches import kept_runs


def forget() -> None:
    """Know no more than a process that begins."""
    kept_runs._read.cache_clear()
    kept_runs._contents.cache_clear()
    kept_runs._code.cache_clear()
    kept_runs._adapter.cache_clear()
