"""A folder laid out like SpotServe's published data, with small files made up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from spotwise.studies.spotserve.profiles import PAPER_MODELS


def profile_document(layers: int, prompt_ms: float = 20.0, step_ms: float = 1.0) -> dict[str, Any]:
    """Return a profile in which nothing but layers takes time: half as long with twice the shards."""
    document: dict[str, Any] = {
        "layer_num": layers,
        "padded_layer_num": 48 if layers > 36 else 36,
        "final_fix_factor": 1.0,
        "pp_init_comm": 0.0,
        "pp_incr_comm": 0.0,
        "embed": [0.0, 0.0, 0.0, 0.0],
    }
    for shards in (1, 2, 4, 8):
        document[f"tp-{shards}"] = {
            f"bsz-{batch}": {"init": prompt_ms * 4 / shards * batch, "incr": step_ms * 4 / shards}
            for batch in (1, 2, 4, 8)
        }
    return document


def write_segment(path: Path, counts: Mapping[float, int], end_s: float) -> None:
    """Write a segment with so many instances from each time on; the oldest go first."""
    came = gone = 0
    lines = []
    for at_s, count in counts.items():
        change = count - (came - gone)
        first = came if change > 0 else gone
        nodes = [f"node-{first + number}" for number in range(abs(change))]
        lines.append([int(at_s * 1000), "add" if change > 0 else "remove", {"nodes": nodes}])
        came, gone = came + max(0, change), gone + max(0, -change)
    lines.append([int(end_s * 1000), "DONE", {"nodes": []}])
    path.write_bytes(b"\n".join(orjson.dumps(line) for line in lines) + b"\n")


def write_arrivals(path: Path, rate: float, count: int) -> None:
    lines = (f"{number},{(number + 1) / rate},512,{number * 2944}" for number in range(count))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_profiles(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for model in PAPER_MODELS.values():
        (folder / model.profile).write_bytes(orjson.dumps(profile_document(model.shape.layers)))
