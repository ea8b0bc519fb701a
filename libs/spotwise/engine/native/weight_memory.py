"""Memory for packed weights: private to a process, or a file that all workers of a machine map.

The first worker writes the file under a lock and renames it when complete; the others wait and map it. Its name covers all that
its bytes depend on, and checksums are verified. Without a file a worker keeps its own copy, and the log says why.
The format is safetensors, with a header padded so that weights can be written one after the other.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog
import torch
import transformers
import xxhash
from filelock import FileLock
from safetensors import SafetensorError, safe_open

from spotwise.engine.native.build import sources_fingerprint
from spotwise.engine.native.library import PANEL

Fill = Callable[[torch.Tensor], object]

_log = structlog.get_logger(__name__)
# Increase it when Python prepares the weights differently; changes of the kernels' sources are covered by their fingerprint.
_FORMAT_VERSION = 2
_DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.uint8: "U8"}
# Weights begin at a cache line, so that vector loads are aligned.
_ALIGNMENT = 64
_PAGE = 4096
_SUFFIX = ".safetensors"
_PARTIAL = ".partial"
# Header entry of a weight: name, offsets and checksum. A fused layer has fewer weights than the original.
_HEADER_BYTES_PER_WEIGHT = 512
_LOCK_TIMEOUT_S = 600.0
# Smaller parameters stay private: sharing them saves too little.
_SMALLEST_SHARED_BYTES = 1 << 14


class WeightMemory:
    """Memory for weights that is private to this process; the base of memory that processes share."""

    def place(self, name: str, elements: int, dtype: torch.dtype, fill: Fill) -> torch.Tensor:
        """Return `[elements]`, read-only; `fill` computes them unless the memory holds them already."""
        tensor = torch.empty(elements, dtype=dtype)
        fill(tensor)
        return tensor

    def share(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return an unpacked weight, from shared memory if possible."""
        return tensor

    def drop(self, prefix: str) -> None:
        """Release the weights placed last whose names begin with `prefix`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Complete the memory, or discard it after an error."""


#: The one instance of private memory, which has no state.
PRIVATE = WeightMemory()


class _FileMemory(WeightMemory):
    def share(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu" or tensor.dtype not in _DTYPE_NAMES or tensor.nbytes < _SMALLEST_SHARED_BYTES:
            return tensor
        placed = self.place(name, tensor.numel(), tensor.dtype, lambda to: to.copy_(tensor.reshape(-1)))
        return placed.view(tensor.shape)


class _MappedMemory(_FileMemory):
    """Weights mapped from a complete file, and private memory for weights that it lacks."""

    def __init__(self, path: Path, tensors: dict[str, torch.Tensor]) -> None:
        self._path = path
        self._tensors = tensors
        self._own_bytes = 0

    def place(self, name: str, elements: int, dtype: torch.dtype, fill: Fill) -> torch.Tensor:
        tensor = self._tensors.get(name)
        if tensor is not None and tensor.dtype is dtype and len(tensor) == _padded(elements, dtype):
            return tensor[:elements]
        own = super().place(name, elements, dtype, fill)
        self._own_bytes += own.nbytes
        return own

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        shared = sum(tensor.nbytes for tensor in self._tensors.values())
        self._tensors = {}  # unmaps unused weights
        _log.info("weights_mapped", file=str(self._path), shared_bytes=shared, own_bytes=self._own_bytes)


class _WrittenMemory(_FileMemory):
    """A file that is being written and is mapped already.

    Raises:
        OSError: the file cannot be created.
        RuntimeError: the file cannot be mapped.
    """

    def __init__(self, target: Path, lock: FileLock, sizes: Iterable[tuple[int, int]]) -> None:
        """Take ownership of `lock`; `sizes` are the bytes of each of the model's weights, and of 32 of its rows."""
        sizes = list(sizes)
        header = _HEADER_BYTES_PER_WEIGHT * (len(sizes) + 8)
        self._header_bytes = -(-header // _PAGE) * _PAGE
        # tied embeddings are stored twice: unpacked and packed
        most = sum(weight + rows + _ALIGNMENT for weight, rows in sizes) + max(map(sum, sizes), default=0)
        capacity = self._header_bytes + most
        if shutil.disk_usage(target.parent).free < capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target.parent))
        handle, path = tempfile.mkstemp(prefix=_hidden(target), suffix=_PARTIAL, dir=target.parent)
        self._target, self._lock, self._path = target, lock, Path(path)
        self._entries: dict[str, tuple[int, int, torch.dtype, str]] = {}
        self._end = self._header_bytes
        self._file: Any = os.fdopen(handle, "r+b")
        try:
            self._file.truncate(capacity)
            self._storage: Any = torch.UntypedStorage.from_file(path, shared=False, nbytes=capacity)
        except (OSError, RuntimeError):
            self._abandon()
            raise

    def place(self, name: str, elements: int, dtype: torch.dtype, fill: Fill) -> torch.Tensor:
        if self._file is None:
            return super().place(name, elements, dtype, fill)
        padded = torch.empty(_padded(elements, dtype), dtype=dtype)
        padded[elements:] = 0
        own = padded[:elements]
        fill(own)
        start = self._end
        try:
            if start + padded.nbytes > self._storage.nbytes():
                raise OSError(errno.EFBIG, "more weights than the model has")
            self._file.seek(start)
            self._file.write(_bytes(padded))
            self._file.flush()
        except OSError as error:
            _warn(error)
            self._abandon()
            return own
        self._end += padded.nbytes
        self._entries[name] = (start, self._end, dtype, _checksum(padded))
        mapped = torch.empty(0, dtype=dtype)
        mapped.set_(self._storage, start // dtype.itemsize, (elements,), (1,))
        return mapped

    def drop(self, prefix: str) -> None:
        for name in reversed(list(self._entries)):
            if not name.startswith(prefix):
                break
            self._end = self._entries.pop(name)[0]

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        if error is None:
            try:
                self._finish()
            except OSError as failure:
                _warn(failure)
        self._abandon()

    def _finish(self) -> None:
        begin = self._header_bytes
        described: dict[str, Any] = {
            name: {
                "dtype": _DTYPE_NAMES[dtype],
                "shape": [(end - start) // dtype.itemsize],
                "data_offsets": [start - begin, end - begin],
            }
            for name, (start, end, dtype, _) in self._entries.items()
        }
        described["__metadata__"] = {name: checksum for name, (_, _, _, checksum) in self._entries.items()}
        length = begin - 8
        header = json.dumps(described).encode().ljust(length)
        if len(header) > length:
            raise OSError(errno.EFBIG, "the names of the weights are too long")
        self._file.seek(0)
        self._file.write(length.to_bytes(8, "little") + header)
        self._file.truncate(self._end)  # flushes
        self._path.chmod(0o644)  # mkstemp creates private files; a cache may be shared
        self._path.replace(self._target)
        for older in _siblings(self._target, f"{_family(self._target)}-", _SUFFIX):
            if older != self._target:
                older.unlink(missing_ok=True)  # existing mappings stay valid
        _log.info("weights_written", file=str(self._target), shared_bytes=self._end - begin)

    def _abandon(self) -> None:
        """Close the file, delete it if it was not renamed to its target, and release the lock."""
        with contextlib.suppress(OSError):  # the failed write may be flushed again
            self._file.close()
        self._file = None
        self._path.unlink(missing_ok=True)
        self._lock.release()


def open_memory(
    folder: Path | None, model_dir: Path, model: Any, digest: str | None = None, weights: str = "keep"
) -> WeightMemory:
    """Return the memory for a model's weights, a context manager.

    Args:
        folder: folder of the files of all models, created if missing; `None`: every process keeps its own copy.
        model_dir: folder from which the model was loaded.
        model: as it was loaded.
        digest: hash of its weights, if known: a replaced file may have kept its size and time.
        weights: as in `EngineConfig`.
    """
    if folder is None:
        return PRIVATE
    version = f"{weights_fingerprint(model_dir)}{digest or ''}{weights}"
    target = folder / f"{_family_name(model_dir, model.dtype)}-{version}{_SUFFIX}"
    lock = FileLock(folder / f"{_hidden(target)}lock")
    try:
        if (mapped := _map(target)) is not None:
            return mapped
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=_LOCK_TIMEOUT_S)
        if (mapped := _map(target)) is not None:  # another process wrote it while this one waited
            lock.release()
            return mapped
        for leftover in _siblings(target, _hidden(target), _PARTIAL):
            leftover.unlink(missing_ok=True)  # left by a process that died: this one holds the lock
        return _WrittenMemory(target, lock, _sizes(model))
    except (OSError, RuntimeError) as error:  # also raised by a file system without locks
        lock.release()
        _warn(error)
        return PRIVATE


def _map(path: Path) -> _MappedMemory | None:
    """Return the weights of a file, or `None` if it is missing or damaged."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            checksums = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except FileNotFoundError:  # deleted meanwhile
        return None
    except (OSError, SafetensorError) as error:
        _log.warning("weights_file_damaged", file=str(path), reason=str(error))
        return None
    for name, tensor in tensors.items():
        if checksums.get(name) != _checksum(tensor):
            _log.warning("weights_file_damaged", file=str(path), reason=f"the checksum of {name} differs")
            return None
    return _MappedMemory(path, tensors)


def _family_name(model_dir: Path, dtype: torch.dtype) -> str:
    """Return the file name prefix of a model in one dtype; only the newest file with it is kept."""
    folder = model_dir.resolve()
    place = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    return f"{folder.name}-{place}-{str(dtype).removeprefix('torch.')}"


def weights_fingerprint(model_dir: Path) -> str:
    """Return a digest of all that packed weights depend on except dtype and device.

    Raises:
        OSError: the folder cannot be read.
    """
    digest = hashlib.sha256(f"{_FORMAT_VERSION} {sources_fingerprint()} {transformers.__version__}\0".encode())
    digest.update((model_dir / "config.json").read_bytes())
    for file in sorted(model_dir.glob("*.safetensors")):
        status = file.stat()
        digest.update(f"\0{file.name}\0{status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _hidden(target: Path) -> str:
    """Return the name prefix of a family's lock and unfinished files."""
    return f".{_family(target)}."


def _family(target: Path) -> str:
    return target.name.rpartition("-")[0]


def _siblings(target: Path, prefix: str, suffix: str) -> list[Path]:
    return [path for path in target.parent.iterdir() if path.name.startswith(prefix) and path.name.endswith(suffix)]


def _sizes(model: Any) -> list[tuple[int, int]]:
    """Return the bytes of each weight, and of the rows that packing may add to it."""
    return [(w.nbytes, PANEL * w.nbytes // min(w.shape) if w.dim() == 2 else 0) for w in model.parameters()]


def _padded(elements: int, dtype: torch.dtype) -> int:
    step = _ALIGNMENT // dtype.itemsize
    return -(-elements // step) * step


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.view(torch.uint8).numpy().data


def _checksum(tensor: torch.Tensor) -> str:
    digest: str = xxhash.xxh3_64_hexdigest(_bytes(tensor))
    return digest


def _warn(error: Exception) -> None:
    _log.warning("weights_not_shared", reason=str(error))
