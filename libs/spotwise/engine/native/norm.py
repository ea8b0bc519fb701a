"""Root-mean-square norms by the native kernels: torch's sum has another order on another kind of processor."""

from __future__ import annotations

from typing import Any

import torch

from spotwise.engine.native.library import FORMATS, Kernels

# Largest distance from the module's own output, relative to it: of the rounding of sums, and of bfloat16 in between.
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


class NativeNorm(torch.nn.Module):
    """A replacement of a norm that computes x / sqrt(mean(x^2) + epsilon) * weight (Zhang and Sennrich, 2019)."""

    def __init__(self, kernels: Kernels, weight: torch.Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight.detach().contiguous(), requires_grad=False)
        self._normalize, self._epsilon = kernels.normalize, epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of `[..., width]`."""
        width = len(self.weight)
        if x.dtype is not self.weight.dtype or x.shape[-1] != width:
            raise ValueError(f"{tuple(x.shape)} of {x.dtype} given, [..., {width}] of {self.weight.dtype} expected")
        x = x.contiguous()
        out = torch.empty_like(x)
        self._normalize(
            FORMATS[x.dtype],
            x.data_ptr(),
            x.numel() // width,
            width,
            self.weight.data_ptr(),
            self._epsilon,
            out.data_ptr(),
        )
        return out


def replace_norms(model: torch.nn.Module, kernels: Kernels) -> None:
    """Replace the norms of a model that compute what `NativeNorm` does, in place; others keep their code."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if (norm := _replacement(child, kernels)) is not None:
                setattr(parent, name, norm)


def epsilon_of(norm: Any) -> float | None:
    """Return a norm module's epsilon, or `None` where it does not say it."""
    for name in ("variance_epsilon", "eps"):
        if (epsilon := getattr(norm, name, None)) is not None:
            return float(epsilon)
    return None


def _replacement(module: Any, kernels: Kernels) -> NativeNorm | None:
    weight = getattr(module, "weight", None)
    epsilon = epsilon_of(module)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1 or epsilon is None or weight.dtype not in FORMATS:
        return None
    if list(module.children()) or weight.device.type != "cpu" or getattr(module, "bias", None) is not None:
        return None
    norm = NativeNorm(kernels, weight, epsilon)
    probe = torch.linspace(-2, 3, 4 * len(weight)).view(4, -1).to(weight.dtype)
    try:
        expected, actual = module(probe).float(), norm(probe).float()
    except (TypeError, ValueError, RuntimeError):  # it wants more than its input
        return None
    agrees = (actual - expected).norm() <= _TOLERANCE[weight.dtype] * expected.norm()
    return norm if bool(agrees) else None
