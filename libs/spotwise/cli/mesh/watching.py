"""Refreshes a command's output each second, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.live import Live

_EVERY_S = 1.0


def watch(show: Callable[[], RenderableType], console: Console) -> None:
    """Show what `show` returns, each second; returns at Ctrl-C. What `show` raises is raised."""
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                live.update(show(), refresh=True)
                time.sleep(_EVERY_S)
        except KeyboardInterrupt:
            return
