"""Stop signals of a service."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable


def call_on_stop_signals(stop: Callable[[], None]) -> None:
    """Call `stop` on the running loop at SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
