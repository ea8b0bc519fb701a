"""A process that loads an engine with shared weights and prints, one JSON line each: how it got them, its tokens, its pages.

`python -m tests.unit.engine.sharing_worker MODEL_FOLDER DTYPE WEIGHTS_FOLDER`. It lives until its standard input ends, and
prints its pages again at each line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from structlog.testing import capture_logs

from spotwise.engine.engine import Engine
from spotwise.engine.model.loading import EngineConfig
from tests.unit.engine.tiny_models import Driver, record


def tokens_of(engine: Engine) -> list[list[int]]:
    """Return the tokens of some greedy sequences."""
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
    """Load, compute, print."""
    model_dir, dtype, weights = sys.argv[1:]
    with capture_logs() as logs:
        config = EngineConfig(Path(model_dir), dtype, "cpu", 4 << 20, threads=1, shared_weights=Path(weights))
        engine = Engine.load(config)
    report({"logs": logs, "tokens": tokens_of(engine)})
    for _ in sys.stdin:
        report(pages_of(os.getpid(), Path(weights)))


def report(fact: object) -> None:
    """Write a line."""
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
