"""Lets a part compute while its weights arrive: what is not there yet is waited for by the first layer that needs it.

So a pipeline serves as soon as its first stage is whole; its later stages queue steps meanwhile (SpotServe, section 4.2).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from spotwise.engine.model.errors import ModelError
from spotwise.engine.native.exchange import GroupBrokenError

#: Interval at which it is checked that an iteration is still wanted.
_LOOK_S = 0.05


class WeightFlow:
    """The weights of one part that are on their way. Any thread may tell of them, the engine's waits.

    Args:
        is_wanted: tells whether iterations are wanted; if not, waits end.
    """

    def __init__(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        self._is_wanted = is_wanted
        self._news = threading.Condition()
        self._is_over = False
        self._error: str | None = None

    def gate(self, module: torch.nn.Module, is_there: Callable[[], bool]) -> None:
        """Let a module wait for weights that it needs when it runs first; it raises `ModelError` where they will not come, and
        `GroupBrokenError` where the iteration is not wanted any more.
        """
        if is_there():
            return

        def wait(*_: Any) -> None:
            self._wait(is_there)
            hook.remove()

        hook = module.register_forward_pre_hook(wait)

    def arrived(self) -> None:
        """Note that more is there."""
        with self._news:
            self._news.notify_all()

    def end(self, error: str | None = None) -> None:
        """Note that nothing more is on its way, and why not, where something is missing."""
        with self._news:
            self._is_over, self._error = True, error
            self._news.notify_all()

    def _wait(self, is_there: Callable[[], bool]) -> None:
        with self._news:
            while not is_there():
                if self._is_over:
                    raise ModelError(f"weights did not arrive: {self._error or 'unknown'}")
                if not self._is_wanted():
                    raise GroupBrokenError("the group was dissolved")
                self._news.wait(_LOOK_S)
