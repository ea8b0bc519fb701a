"""Choices of a worker's engine that users have, the same in its settings and on the command line."""

from __future__ import annotations

from typing import Literal, get_args

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
#: Order in which the native kernels add bfloat16 products.
KernelOrder = Literal["auto", "dot", "amx"]
DTYPES: tuple[str, ...] = get_args(Dtype)

#: What becomes of weights that a model stores in blocks.
Weights = Literal["keep", "widen"]
WEIGHTS: tuple[str, ...] = get_args(Weights)

#: A pattern of devices.
DEVICE = r"^(auto|cpu|cuda(:\d+)?)$"
