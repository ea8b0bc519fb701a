"""How a service hears that it is to end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable


def call_on_stop_signals(stop: Callable[[], None]) -> None:
    """Have `stop` called on the running loop at SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
