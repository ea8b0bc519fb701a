"""Chooses the memory that a worker's KV hand-offs move through, and logs it. A cache on the host is moved as it is; one on a
GPU directly from the device where UCX reaches CUDA memory, else through pinned host memory; so is one that has to be encrypted.
"""

from __future__ import annotations

import structlog

from spotwise.engine.kv.cache import PagedKvCache
from spotwise.engine.kv.device import DeviceKv
from spotwise.engine.torch_devices import make_current
from spotwise.mesh.links.ucx_reactor import reaches_cuda_memory
from spotwise.mesh.ports.ports import KvMemory, PayloadMemory

_log = structlog.get_logger(__name__)


def transfer_memory(cache: PagedKvCache, *, is_encrypted: bool = False) -> tuple[KvMemory, PayloadMemory | None]:
    """Return what the transfer exports from and imports into, and the memory of its payloads (`None`: numpy arrays). Call it in
    the thread that drives UCX: a GPU is made current in the calling thread, and UCX needs that. `is_encrypted`: links may have
    to be, which the processor does.
    """
    if cache.device.type != "cuda":
        return cache, None
    make_current(cache.device)
    direct = reaches_cuda_memory() and not is_encrypted
    if is_encrypted:
        _log.warning("kv_transfer_memory", memory="pinned host", reason="SPOTWISE_LINK_ENCRYPTION")
    elif direct:
        _log.info("kv_transfer_memory", memory="device")
    else:
        _log.warning("kv_transfer_memory", memory="pinned host", reason="UCX does not reach CUDA memory here")
    memory = DeviceKv(cache, direct=direct)
    return memory, memory
