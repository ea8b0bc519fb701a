"""What a command says is its own output: its adapters' log lines are dropped."""

from __future__ import annotations

import logging


def silence_logging() -> None:
    """Drop the adapters' log lines, for a command, whose errors are exceptions."""
    import structlog  # `--help` needs none, and it takes as long to import as all else of it

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
