"""Reports which layers of a running iteration have written their KV.

A layer is reported after all layers before it, on the engine's thread. On a GPU an event marks when its KV is written; copies
of the layer wait for it (`PagedKvCache.written_event`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from spotwise.engine.kv.cache import PagedKvCache
from spotwise.engine.model.attention_interface import AttentionContext

#: Called with the number of layers, from the cache's first on, that have written their KV.
LayersWritten = Callable[[int], None]


@contextlib.contextmanager
def reporting_layers(
    attention: AttentionContext, cache: PagedKvCache, listener: LayersWritten | None
) -> Iterator[None]:
    """Call `listener` for each layer of the forward inside the block; `None`: no calls."""
    if listener is None:
        yield
        return
    reported = 0

    def written(layer: int) -> None:
        nonlocal reported
        if layer == cache.part.layers.start + reported:
            cache.note_written(layer)
            reported += 1
            listener(reported)

    attention.on_written = written
    try:
        yield
    finally:
        attention.on_written = None
