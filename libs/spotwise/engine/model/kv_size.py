"""Measures the memory that a KV cache may take on the device of a loaded model, and names what cannot be had."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from spotwise.core.kv.size import CPU_SHARE, CUDA_SHARE, auto_kv_bytes, usable_kv_bytes
from spotwise.engine.model.checkpoint_tensors import CheckpointTensors
from spotwise.engine.model.compatibility import ModelFacts
from spotwise.engine.model.errors import ModelError

#: Attention's workspace, activations, the pools of recorded decodes, and buffers of KV on its way.
_CUDA_WORKSPACE_BYTES = 1536 << 20
#: Copies of logits in float32 that an iteration may hold.
_LOGITS = 2
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class AutoKvSize:
    """The size of a cache that is measured when the model is loaded.

    Attributes:
        max_num_seqs: sequences of an iteration.
        workers: workers that share the memory of this machine, or of its GPU, this one included.
        free_host_bytes: measures what is free of the host's.
    """

    max_num_seqs: int
    workers: int
    free_host_bytes: Callable[[], int]

    def measured(
        self, facts: ModelFacts, device: torch.device, block_size: int, lacking: CheckpointTensors | None = None
    ) -> int:
        """Return the bytes for a model that is on `device`; what it is `lacking` is still to be loaded there."""
        token_bytes = facts.geometry.elements_per_token * facts.kv_dtype.itemsize
        most_bytes = usable_kv_bytes(facts.context_length, self.max_num_seqs, block_size, token_bytes)
        if device.type != "cuda":
            free_bytes = self.free_host_bytes() - (0 if lacking is None else lacking.stored_bytes)
            return auto_kv_bytes(free_bytes, CPU_SHARE, self.workers, 0, most_bytes)
        torch.cuda.empty_cache()
        free_bytes, _ = torch.cuda.mem_get_info(device)
        workspace_bytes = _CUDA_WORKSPACE_BYTES + _LOGITS * self.max_num_seqs * facts.vocab_size * _FLOAT_BYTES
        return auto_kv_bytes(free_bytes, CUDA_SHARE, self.workers, workspace_bytes, most_bytes)


@contextlib.contextmanager
def named_memory_errors(what: str) -> Iterator[None]:
    """Raise `ModelError`, one sentence that says what to do, where memory for `what` cannot be had."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError, RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        is_memory = isinstance(error, MemoryError | torch.OutOfMemoryError | OSError) or "memory" in str(error)
        if not is_memory:
            raise
        raise ModelError(
            f"there is not enough memory for {what}: lower SPOTWISE_KV_CACHE_BYTES (--kv-cache) or SPOTWISE_MAX_NUM_SEQS, "
            "start fewer workers on this machine, or use a smaller model"
        ) from error
