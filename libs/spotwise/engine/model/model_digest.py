"""A digest of a model's weights and structure.

Equal for folders whose tensors have equal names, shapes, formats and bytes and whose configs compute the same, however the
files are split. It detects accidents, not forgeries. Why every byte counts: docs/adr/0025-digest-of-the-weights.md.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xxhash

from spotwise.engine.model.checkpoint import Checkpoint, StoredTensor
from spotwise.engine.model.errors import ModelError

# Increase it when the digest of an unchanged model changes.
_VERSION = 1
_MOST_THREADS = 8
# Fits into the CPU's caches, and amortizes a system call.
_READ_BYTES = 1 << 20
#: Config entries that name or describe a model without changing what it computes.
_DESCRIPTIVE = frozenset(
    (
        "_name_or_path",
        "architectures",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "name_or_path",
        "pad_token_id",
        "torch_dtype",
        "transformers_version",
        "transformers_weights",
        "use_cache",
    )
)


def model_digest(checkpoint: Checkpoint) -> str:
    """Read all weights, in parallel, and return the digest as 16 hexadecimal digits.

    Raises:
        ModelError: a file cannot be read, or was truncated meanwhile.
    """
    digest = xxhash.xxh3_64(f"spotwise model {_VERSION}\0".encode())
    digest.update(json.dumps(_computing(checkpoint.config), sort_keys=True).encode())
    with ThreadPoolExecutor(min(_MOST_THREADS, len(os.sched_getaffinity(0)))) as readers:
        contents = readers.map(_digest_of, checkpoint.tensors)
        for tensor, content in zip(checkpoint.tensors, contents, strict=True):
            digest.update(f"\0{tensor.name}\0{tensor.dtype}\0{tensor.shape}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def _computing(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config without its descriptive entries, nested configs included."""
    return {
        name: _computing(value) if isinstance(value, dict) else value
        for name, value in config.items()
        if name not in _DESCRIPTIVE
    }


def _digest_of(tensor: StoredTensor) -> bytes:
    digest = xxhash.xxh3_128()
    remaining = tensor.end - tensor.start
    buffer = memoryview(bytearray(min(_READ_BYTES, remaining)))
    try:
        # Read, not mapped: if a mapped file is truncated meanwhile, the process dies of SIGBUS.
        with tensor.file.open("rb", buffering=0) as file:
            file.seek(tensor.start)
            while remaining:
                size = file.readinto(buffer[: min(len(buffer), remaining)])
                if not size:
                    raise ModelError(f"{tensor.file} was truncated while it was read, within {tensor.name}")
                digest.update(buffer[:size])
                remaining -= size
    except OSError as error:
        raise ModelError(f"{tensor.file} cannot be read: {error.strerror or error}") from error
    return digest.digest()
