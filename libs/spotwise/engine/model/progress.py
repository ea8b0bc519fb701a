"""The callback for progress of work on a model."""

from __future__ import annotations

from collections.abc import Callable

#: Called with (stage, done, total); `done == total` ends a stage.
ProgressHandler = Callable[[str, int, int], None]
