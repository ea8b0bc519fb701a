"""What a user may choose of a worker's engine: its settings and the command line offer the same."""

from __future__ import annotations

from typing import Literal, get_args

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DTYPES: tuple[str, ...] = get_args(Dtype)

#: A pattern of devices.
DEVICE = r"^(auto|cpu|cuda(:\d+)?)$"
