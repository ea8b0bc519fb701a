"""Engines with shared weights, and what they leave in the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from structlog.testing import capture_logs

from spotwise.engine.engine import Engine
from spotwise.engine.model.loading import EngineConfig

Log = dict[str, Any]


def load(folder: Path, cache: Path | None, dtype: str = "float32") -> tuple[Engine, list[Log]]:
    """Load on one CPU thread; return what was logged meanwhile, too."""
    with capture_logs() as logs:
        config = EngineConfig(folder, dtype, "cpu", 4 << 20, threads=1, shared_weights=cache)
        engine = Engine.load(config)
    return engine, [dict(entry) for entry in logs]


def events(logs: list[Log]) -> list[str]:
    return [entry["event"] for entry in logs]


def weights_files(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.safetensors"))


def left_in(cache: Path) -> list[str]:
    """Names of all that is neither a finished file nor a lock."""
    return sorted(path.name for path in cache.iterdir() if path.suffix not in (".safetensors", ".lock"))


def plain_model(**shapes: tuple[int, ...]) -> torch.nn.Module:
    """A model of parameters alone."""
    model = torch.nn.Module()
    for name, shape in shapes.items():
        model.register_parameter(name, torch.nn.Parameter(torch.zeros(shape), requires_grad=False))
    model.dtype = torch.float32  # type: ignore[assignment]
    return model
