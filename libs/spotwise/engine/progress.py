"""How long work on a model tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

#: Called with (stage, done, total); `done == total` ends a stage.
ProgressHandler = Callable[[str, int, int], None]
