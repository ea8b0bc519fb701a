"""Sizes of the house: a file holds one idea, and a folder what a reader can survey."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_LINES = 400
MAX_FILES = 20
#: Larger ones, by their size now: they may shrink, and no further one comes in.
LARGE_FILES = {
    "libs/spotwise/simulator/world/aggregate_worker.py": 504,
}


def sources() -> list[Path]:
    """The product's files in Python, generated code and packages' empty ones apart."""
    found = [path for root in ("libs", "services") for path in sorted((ROOT / root).rglob("*.py"))]
    return [
        path for path in found if path.name != "__init__.py" and "v1" not in path.parts and "_build" not in path.parts
    ]


def test_a_file_has_at_most_400_lines() -> None:
    sizes = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in sources()
    }
    assert {name: lines for name, lines in sizes.items() if lines > LARGE_FILES.get(name, MAX_LINES)} == {}
    assert LARGE_FILES.keys() <= {name for name, lines in sizes.items() if lines > MAX_LINES}


def test_a_folder_has_at_most_20_files() -> None:
    sizes = Counter(path.parent.relative_to(ROOT).as_posix() for path in sources())
    assert {name: files for name, files in sizes.items() if files > MAX_FILES} == {}
