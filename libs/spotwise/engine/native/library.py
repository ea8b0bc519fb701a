"""The kernels' C interface.

Shapes and types are checked in Python; the C++ side checks nothing. Each calling thread has threads of its own to compute with,
as many as it has set (`set_threads`), else as many as were set last. Structures hold addresses only: their owner keeps the
tensors alive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache

import numpy as np
import structlog
import torch

from spotwise.engine.native import processor
from spotwise.engine.native.build import NoKernelsError, ensure_library, variant_for_this_processor

_log = structlog.get_logger(__name__)

#: The kernels' code of each dtype that they support.
FORMATS = {torch.float32: 0, torch.bfloat16: 1}
#: Consecutive values of the contracted dimension that are read together, by dtype.
PAIR = {torch.float32: 1, torch.bfloat16: 2}
#: Output columns of a panel of packed weights.
PANEL = 32
#: Lanes of a vector; widths must be multiples of it.
LANES = 16


class LayerFields(ctypes.Structure):
    """Mirrors `LayerFields` of kernels.cpp."""

    _fields_ = (
        *((name, c_int32) for name in ("format", "heads", "kv_heads", "key_dim", "value_dim", "window", "hidden")),
        *((name, c_int32) for name in ("intermediate", "rotary_dim", "activation", "attended", "first_attended")),
        *((name, c_int32) for name in ("own_hidden", "first_hidden", "own_inner", "first_inner")),
        *((name, c_int32) for name in ("key_gap", "value_gap", "index")),
        *((name, c_float) for name in ("scale", "softcap", "epsilon")),
        *((name, c_void_p) for name in ("slopes", "sinks", "input_norm", "post_norm", "query_norm", "key_norm")),
        *((name, c_void_p) for name in ("qkv_bias", "output_bias", "qkv", "output", "gate_up", "down")),
        *((f"{name}_kind", c_int32) for name in ("query", "key", "value", "output", "gate_up", "down")),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("kv_blocks", c_int64),
        ("gathering", c_void_p),
    )


class LowRankFields(ctypes.Structure):
    """Mirrors `LowRank` of low_rank.h."""

    _fields_ = (("down", c_void_p), ("up", c_void_p * 3), ("ranks", c_int32 * 3))


class AdaptedLayerFields(ctypes.Structure):
    """Mirrors `AdaptedLayer` of low_rank.h."""

    _fields_ = tuple((name, LowRankFields) for name in ("qkv", "output", "gate_up", "down"))


class AdapterRowFields(ctypes.Structure):
    """Mirrors `AdapterRows` of low_rank.h."""

    _fields_ = (("count", c_int32), ("first_row", c_void_p), ("layers", c_void_p))


class Gathering(ctypes.Structure):
    """Mirrors `Gathering` of layer.h."""

    _fields_ = tuple((name, c_void_p) for name in ("gather", "context", "attended", "hidden", "inner"))


class StageFields(ctypes.Structure):
    """Mirrors `StageFields` of kernels.cpp."""

    _fields_ = (("exchange", c_void_p), ("first", c_int32), ("count", c_int32))


class AttentionFields(ctypes.Structure):
    """Mirrors `AttentionFields` of kernels.cpp."""

    _fields_ = (
        *((name, c_int32) for name in ("format", "heads", "kv_heads", "key_dim", "value_dim", "window")),
        *((name, c_float) for name in ("scale", "softcap")),
        *((name, c_void_p) for name in ("slopes", "sinks", "keys", "values")),
        ("kv_blocks", c_int64),
    )


class RowFields(ctypes.Structure):
    """Mirrors `RowFields` of kernels.cpp."""

    _fields_ = (
        ("rows", c_int32),
        ("tokens", c_int32),
        *((name, c_void_p) for name in ("first_token", "first_position", "table_start", "tables", "row_of_token")),
    )


#: Mirrors `Draw` of sampling.h.
DRAW = np.dtype([*((name, np.float64) for name in ("temperature", "top_p", "min_p", "uniform")), ("top_k", np.int64)])


class Kernels:
    """The C functions of the loaded library."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        self.set_threads = _function(library.sw_set_threads, c_int)
        self._own_cores = _function(library.sw_own_cores, c_void_p, c_int)
        self.pack = _function(library.sw_pack, c_int, c_void_p, c_int, c_int, c_void_p, c_void_p)
        self.pack_blocks = _function(
            library.sw_pack_blocks, c_int, c_int, c_void_p, c_int, c_int, c_void_p, c_void_p, c_int64
        )
        self.widen_columns = _function(
            library.sw_widen_columns, c_int, c_int, c_void_p, c_int, c_void_p, c_int, c_void_p
        )
        self.linear = _function(
            library.sw_linear,
            c_int,
            c_void_p,
            c_int64,
            c_int,
            c_int,
            c_void_p,
            c_int,
            c_int,
            c_void_p,
            c_void_p,
            c_int64,
            c_int,
        )
        self.normalize = _function(library.sw_normalize, c_int, c_void_p, c_int, c_int, c_void_p, c_float, c_void_p)
        self.layers = _function(library.sw_layers, c_void_p, c_int, *[c_void_p] * 4, c_int, c_void_p, returns=c_int)
        self.attend = _function(library.sw_attend, c_void_p, c_void_p, *[c_void_p, c_int64, c_int64] * 3, c_void_p)
        self.pick = _function(library.sw_pick, c_void_p, c_int, c_int, c_void_p, c_void_p)
        self.exchange_bytes = _function(library.sw_exchange_bytes, c_int, c_int64, returns=c_int64)
        self.exchange_join = _function(
            library.sw_exchange_join, c_void_p, c_int, c_int, c_int64, c_int64, returns=c_void_p
        )
        self.exchange_leave = _function(library.sw_exchange_leave, c_void_p)
        self.exchange_broken = _function(library.sw_exchange_broken, c_void_p, returns=c_int)
        self.exchange_complete = _function(library.sw_exchange_complete, c_void_p, returns=c_int)
        self.exchange_fail = _function(library.sw_exchange_fail, c_void_p, c_int)
        self.socket_exchange_join = _function(library.sw_socket_exchange_join, c_int, c_int, c_int64, returns=c_void_p)
        self.exchange_connect = _function(library.sw_exchange_connect, c_void_p, c_int, c_int, c_int)
        self.exchange_send = _function(library.sw_exchange_send, c_void_p, c_int, c_void_p, c_int64, returns=c_int)
        self.exchange_receive = _function(
            library.sw_exchange_receive, c_void_p, c_int, c_void_p, c_int64, returns=c_int
        )
        self.exchange_waits = _function(library.sw_exchange_waits, c_void_p, returns=c_int)
        self.exchange_times = _function(library.sw_exchange_times, c_void_p, c_void_p)
        self.exchange_gather = _function(
            library.sw_exchange_gather, c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_int, returns=c_int
        )

    def own_cores(self, cores: Sequence[int]) -> None:
        """Give each of the threads that `set_threads` starts for the calling thread from now on a core of its own: all but the
        first, which is the calling thread's; empty: they run where the calling thread may.
        """
        self._own_cores((c_int * len(cores))(*cores), len(cores))


def _function(
    function: ctypes._NamedFuncPointer, *argument_types: type, returns: type | None = None
) -> ctypes._NamedFuncPointer:
    function.argtypes = argument_types
    function.restype = returns
    return function


@cache
def load_kernels() -> Kernels | None:
    """Return the kernels, or log the reason and return `None` where they cannot be compiled or loaded."""
    variant = variant_for_this_processor()
    if refusal := processor.tiles_refusal():
        _log.warning("amx_not_used", kernels=variant.name, reason=refusal)
    try:
        return Kernels(str(ensure_library(variant)))
    except (NoKernelsError, OSError) as error:
        _log.warning("no_native_kernels", reason=str(error))
        return None
