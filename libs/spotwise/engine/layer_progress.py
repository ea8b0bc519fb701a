"""How far the forward of an iteration is: which layers have written their KV.

Law: a layer is told of as soon as its new keys and values are in the cache, on the engine's thread, in the order of the
layers; who listens does next to nothing there. On a device nothing is written yet at that moment: an event is recorded behind
what was queued, and whoever copies the layer waits for it (`PagedKvCache.written_event`).

Invariants: a layer is told of after all before it, or not at all, so that a number of layers says which; nobody is told of
forwards that only score a prompt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from spotwise.engine.attention import AttentionContext
from spotwise.engine.kv_cache import PagedKvCache

#: Called with the number of layers, from the first on, that have written their KV.
LayersWritten = Callable[[int], None]


@contextlib.contextmanager
def telling(attention: AttentionContext, cache: PagedKvCache, listener: LayersWritten | None) -> Iterator[None]:
    """Tell a listener of the layers of the forward inside; `None` hears nothing, and costs nothing."""
    if listener is None:
        yield
        return
    told = 0

    def written(layer: int) -> None:
        nonlocal told
        if layer == told:
            cache.note_written(layer)
            told += 1
            listener(told)

    attention.on_written = written
    try:
        yield
    finally:
        attention.on_written = None
