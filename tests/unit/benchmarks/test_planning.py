"""How long decisions about a fleet take, on one so small that they take none."""

from __future__ import annotations

from pathlib import Path

import orjson

from spotwise.benchmarks.planning import changes, choices
from tests.unit.cli.command_line import CommandLine


def test_every_decision_is_measured(spotwise: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "planning.json"
    ended = spotwise(*f"bench dev planning --quick --json {file}".split())
    assert ended.status == 0, ended.stderr
    document = orjson.loads(file.read_bytes())
    assert document["environment"]["devices"] == 64
    rows = document["rows"]
    chosen = [row for row in rows if row["name"].startswith("configuration:")]
    assert len(chosen) == len(list(choices(64)))
    assert not any("nothing fits" in row["name"] for row in chosen)
    maps = [row for row in rows if row["name"].endswith("device map, s")]
    plans = [row for row in rows if "plan of" in row["name"]]
    assert len(maps) == len(plans) == len(list(changes(64)))
    assert not any("plan of 0 transfers" in row["name"] for row in plans)
    assert all(row["ours"] > 0 for row in rows)
    assert all(row["reference"] == 1.0 for row in (*chosen, *maps))
