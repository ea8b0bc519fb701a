"""Stop signals of a service."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable


def call_on_stop_signals(leave: Callable[[], None], stop: Callable[[], None]) -> None:
    """Call `leave` on the running loop at the first SIGTERM or SIGINT, and `stop` at each further one."""
    acts = itertools.chain([leave], itertools.repeat(stop))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: next(acts)())
