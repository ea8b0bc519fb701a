"""Errors of a model that cannot be served, and the callback for progress of work on one."""

from __future__ import annotations

from collections.abc import Callable


class ModelError(Exception):
    """The model cannot be found, fetched, converted or read."""


class UnsupportedModelError(ModelError):
    """The model is there, and this engine would compute it wrongly: it is refused with the reason."""


class AdapterError(ModelError):
    """An adapter cannot be read, or cannot be applied to the model; the message begins with its name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the adapter {name!r} cannot be served: {reason}")


#: Called with (stage, done, total); `done == total` ends a stage.
ProgressHandler = Callable[[str, int, int], None]
