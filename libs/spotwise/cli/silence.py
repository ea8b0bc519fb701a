"""What a command says is its own output: its adapters' log lines are dropped."""

from __future__ import annotations

import logging

import structlog


def silence_logging() -> None:
    """Drop the adapters' log lines, for a command, whose errors are exceptions."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
