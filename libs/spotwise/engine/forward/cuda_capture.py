"""Records a computation as a CUDA graph: the `Capture` of `decode_graphs` on a GPU.

All recordings share one stream and one memory pool; their outputs are copied out of it. Capture errors are "thread_local",
since other threads copy KV and allocate meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


class CudaCapture:
    """Records CUDA graphs on one device.

    Args:
        device: a CUDA device with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """Run once to warm up, record, and return a function that replays on the caller's current stream.

        Raises:
            RuntimeError: an operation cannot be recorded.
        """
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                run()
            current.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                run()
        return self._replayed(graph)

    def _replayed(self, graph: torch.cuda.CUDAGraph) -> Callable[[], None]:
        def replay() -> None:
            with torch.cuda.device(self._device):
                graph.replay()

        return replay
