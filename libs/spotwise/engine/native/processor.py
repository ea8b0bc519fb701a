"""The features of this machine's processor, and permission to use its tile unit (AMX).

Linux keeps a process from using tiles until it asks, and refuses where a thread has an alternate signal stack that is too small
for their 8 KiB. A process keeps the permission, and its forked children inherit it. Choosing kernels requests it, before their
threads start.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from functools import cache
from pathlib import Path

#: The processor flags that kernels need, as in /proc/cpuinfo.
AVX2 = frozenset({"avx2", "fma", "bmi2", "f16c"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}
AVX512_BF16 = AVX512 | {"avx512_bf16"}
AMX = AVX512_BF16 | {"amx_tile", "amx_bf16"}
_TILE_FLAGS = AMX - AVX512_BF16
# Of x86-64: the call's number, its request for a component of a thread's state, and that of tile data.
_ARCH_PRCTL = 158
_REQUEST_COMPONENT = 0x1023
_TILE_DATA = 18


def is_x86() -> bool:
    """Whether the machine is an x86-64 one."""
    return platform.machine() in ("x86_64", "AMD64")


def flags() -> frozenset[str]:
    """Return the processor's features, named as in /proc/cpuinfo; none where it is not x86."""
    return _listed_flags() if is_x86() else frozenset()


@cache
def _listed_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


def usable_flags() -> frozenset[str]:
    """Return `flags`, without those of the tile unit where it may not be used."""
    return flags() if tiles_refusal() is None else flags() - _TILE_FLAGS


def tiles_refusal() -> str | None:
    """Ask for permission to use the tile unit; return why it may not be used, or `None` where it may or there is none."""
    if not flags() & _TILE_FLAGS:
        return None
    if missing := AMX - flags():
        return f"the processor shows no {', '.join(sorted(missing))}, which its hypervisor may hide"
    error = _permission_error()
    if error == 0:
        return None
    if error == errno.ENOSPC:
        return "a thread's alternate signal stack is too small for tiles; start without PYTHONFAULTHANDLER and -X faulthandler"
    if error in (errno.EINVAL, errno.EOPNOTSUPP):
        return "this Linux offers no tiles; 5.16 and later do, unless they are started without"
    return f"Linux refused tiles: {os.strerror(error)}"


@cache
def _permission_error() -> int:
    """Return the error number of the request for tile data; 0: it was granted."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(ctypes.c_long(_ARCH_PRCTL), ctypes.c_int(_REQUEST_COMPONENT), ctypes.c_ulong(_TILE_DATA)) == 0:
        return 0
    return ctypes.get_errno()
