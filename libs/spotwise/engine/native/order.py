"""The order in which the native kernels add products, by number format; a mesh agrees on one (`worker/claimed_numerics.py`)."""

from __future__ import annotations

import os

#: Names the order of bfloat16's products, as `kernel_order` of a worker's settings; `auto` or unset: the kernels' choice.
ORDER_VARIABLE = "SPOTWISE_KERNEL_ORDER"
#: The orders of bfloat16's products; the first is the default.
ORDERS = ("dot", "amx")


def kernel_order(dtype: str) -> str:
    """Return the order of summation of the native kernels in a number format.

    Raises:
        ValueError: the kernels do not compute in this format, or `SPOTWISE_KERNEL_ORDER` names no order.
    """
    configured = os.environ.get(ORDER_VARIABLE) or "auto"
    if configured not in ("auto", *ORDERS):
        raise ValueError(f"{ORDER_VARIABLE} is {configured!r}; it must be auto, {' or '.join(ORDERS)}")
    if dtype == "float32":
        return "fma"
    if dtype != "bfloat16":
        raise ValueError(f"the native kernels do not compute in {dtype}; they do in float32 and bfloat16")
    return ORDERS[0] if configured == "auto" else configured
