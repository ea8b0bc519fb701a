"""Which memory a worker's hand-offs move through.

Law: decided here, once, from what is there: a cache on the host is moved as it is; one on a GPU straight from the device, where
UCX reaches its memory, else through pinned memory of the host. The log says which.
"""

from __future__ import annotations

import structlog
import torch

from spotwise.engine.device_kv import DeviceKv
from spotwise.engine.kv_cache import PagedKvCache
from spotwise.mesh.ports import KvMemory, PayloadMemory
from spotwise.mesh.ucx_reactor import reaches_cuda_memory

_log = structlog.get_logger(__name__)


def transfer_memory(cache: PagedKvCache) -> tuple[KvMemory, PayloadMemory | None]:
    """Return what the transfer exports from and imports into, and where its payloads lie; `None`: in numpy arrays.

    On a GPU this makes the device current in the calling thread, which is to be the one that drives UCX: it needs that.
    """
    if cache.device.type != "cuda":
        return cache, None
    torch.cuda.set_device(cache.device)
    torch.cuda.synchronize(cache.device)  # the first call of a thread makes the device's context current in it
    direct = reaches_cuda_memory()
    if direct:
        _log.info("kv_transfer_memory", memory="device")
    else:
        _log.warning("kv_transfer_memory", memory="pinned host", reason="UCX does not reach CUDA memory here")
    memory = DeviceKv(cache, direct=direct)
    return memory, memory
