"""Tells how an engine computes: what the bits of its tokens depend on beside weights and tokens."""

from __future__ import annotations

import platform
from typing import Protocol

import torch

from spotwise.core.messages.numerics import Numerics
from spotwise.engine.native.build import sources_fingerprint, variant_for_this_processor
from spotwise.engine.native.order import kernel_order

#: Order of summation where the native kernels do not compute.
TORCH_ORDER = "torch"


class Tensors(Protocol):
    """A model, or what is known of one that is not loaded yet."""

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights and activations."""

    @property
    def device(self) -> torch.device:
        """Where they are."""


def numerics_of(model: Tensors, fused_layers: int | None, layers: int, quantisation: str) -> Numerics:
    """Return the numerics of an engine.

    Args:
        model: its model.
        fused_layers: layers that the native kernels compute as a whole, of `layers`; `None`: these kernels are not used.
        quantisation: the format in which its weights are stored; empty where these are numbers of its dtype.

    Raises:
        ValueError: `SPOTWISE_KERNEL_ORDER` names no order.
    """
    name, is_native = str(model.dtype).removeprefix("torch."), fused_layers is not None
    backend = [f"torch {torch.__version__}"]
    if model.device.type == "cuda":
        backend.append(torch.cuda.get_device_name(model.device))
    elif fused_layers != layers:
        backend.append(torch.backends.cpu.get_cpu_capability())
    if is_native and not variant_for_this_processor().needs:
        backend.append(f"no fused multiply-adds on {platform.machine()}")  # the only kernels with other sums
    order = kernel_order(name) if is_native else TORCH_ORDER
    return Numerics(name, order, sources_fingerprint() if is_native else "", quantisation, ", ".join(backend))
