"""Engines with shared weights, and what they leave in the folder."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from structlog.testing import capture_logs

from spotwise.engine.engine import Engine
from spotwise.engine.model.loading import EngineConfig
from tests.unit.engine.tiny_models import Driver, record


def tokens_of(engine: Engine) -> list[list[int]]:
    driver = Driver(engine)
    for index in range(3):
        driver.add(record(str(index), list(range(1, 30 * index + 10)), max_new_tokens=12))
    tokens = list(driver.finish().values())
    for index in range(3):
        engine.drop_sequence(f"{index}@1")
    return tokens


def pages_of(pid: int, folder: Path) -> dict[str, int]:
    """Return the bytes of each kind of page that a process maps of the files of a folder."""
    sums: dict[str, int] = {}
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            inside = str(folder) in line
        elif inside and rest[-1:] == ["kB"]:
            sums[first[:-1]] = sums.get(first[:-1], 0) + 1024 * int(rest[0])
    return sums


def main() -> None:
    """Print how this process got its weights, its tokens, and at each line of its input its pages; each a JSON line."""
    model_dir, dtype, weights = sys.argv[1:]
    engine, logs = load(Path(model_dir), Path(weights), dtype)
    report({"logs": logs, "tokens": tokens_of(engine)})
    for _ in sys.stdin:
        report(pages_of(os.getpid(), Path(weights)))


def report(fact: object) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


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
    model = torch.nn.Module()
    for name, shape in shapes.items():
        model.register_parameter(name, torch.nn.Parameter(torch.zeros(shape), requires_grad=False))
    model.dtype = torch.float32  # type: ignore[assignment]
    return model
