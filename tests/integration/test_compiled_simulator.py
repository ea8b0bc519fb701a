"""The simulator compiled: all that it computes is what the interpreter computes, to the last bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spotwise.simulator.compiled.loading import VARIABLE

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
WORLDS = 80
#: Of any module that a simulation may import.
IMPORT_ALL = """
import importlib, pkgutil, sys
from spotwise.simulator.compiled.loading import use_compiled
from spotwise.simulator.compiled.modules import compiled_modules
assert use_compiled()
for name in ("spotwise.core", "spotwise.simulator", "spotwise.cli.simulate"):
    for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
        importlib.import_module(module.name)
for name in compiled_modules():
    assert sys.modules[name].__file__.endswith(".so"), name
"""
COMMANDS: dict[str, Sequence[str | Path]] = {
    "cluster": ["run", "--cluster", EXAMPLES / "cluster" / "cluster.toml", "--rates", "4", "--seconds", "10"],
    "seeds": [
        "run",
        "--design",
        "HA",
        "--machines",
        "2,2",
        "--rates",
        "8",
        "--seeds",
        "2",
        "--jobs",
        "2",
        "--seconds",
        "10",
    ],
    "leaving": ["run", "--design", "HH", "--machines", "2,2", "--rates", "8", "--leaving", "1@5", "--seconds", "10"],
    "fleet": [
        "spot",
        *("--trace", EXAMPLES / "what-if" / "availability.csv", "--load", EXAMPLES / "what-if" / "load.csv"),
        *("--profile", EXAMPLES / "what-if" / "machine.json", "--model", "llama2-70b"),
        *("--systems", "spotwise,eager,restart,rerouting"),
    ],
}


def run(*command: str | Path, compiled: bool) -> str:
    environment = os.environ | {VARIABLE: "1" if compiled else "0"}
    done = subprocess.run(
        [sys.executable, *map(str, command)], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def is_compiled() -> None:
    """Compiled from today's sources; `make setup` has done so, unless they changed since."""
    done = subprocess.run(
        [sys.executable, "-m", "spotwise.cli", "simulate", "compile"], capture_output=True, text=True, check=False
    )
    if "there is no C compiler" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


def test_worlds_are_the_same() -> None:
    script = ("-m", "tests.integration.compiled_worlds", str(WORLDS))
    compiled, interpreted = (run(*script, compiled=each).splitlines() for each in (True, False))
    assert len(compiled) == WORLDS
    for one, other in zip(compiled, interpreted, strict=True):
        assert one == other


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_say_the_same(name: str, tmp_path: Path) -> None:
    results = []
    for compiled in (True, False):
        file = tmp_path / f"{compiled}.json"
        run("-m", "spotwise.cli", "simulate", *COMMANDS[name], "--json", file, compiled=compiled)
        results.append(without_clocks(json.loads(file.read_text())))
    assert results[0] == results[1]


def without_clocks(report: Any) -> Any:
    """A report without what the machine's clocks said."""
    if isinstance(report, dict):
        return {key: without_clocks(each) for key, each in report.items() if key not in ("wall_s", "measured_at")}
    return [without_clocks(each) for each in report] if isinstance(report, list) else report


def test_every_module_can_be_imported_beside_the_compiled_ones() -> None:
    """What is interpreted inherits nothing from what is compiled."""
    run("-c", IMPORT_ALL, compiled=True)
