"""A storm of requests, through the benchmark that reports what it does to the workers' memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotwise.benchmarks.arrivals import UniformSizes, storm
from tests.live.mesh import LiveMesh

pytestmark = pytest.mark.long


def test_a_storm_stays_within_its_budget_and_gives_everything_back(mesh: LiveMesh, tmp_path: Path) -> None:
    """More requests at once than the workers have blocks for: all are answered, and at the end every block is free."""
    path = tmp_path / "memory.json"
    shape = ("--requests", "100", "--input-tokens", "64", "--output-tokens", "8", "--name", "default")
    done = mesh.command("bench", "dev", "memory", *shape, "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["name"]: row for row in json.loads(path.read_text())["rows"]}
    assert rows["requests answered"]["ours"] == 100
    targets = {name: row["holds"] for name, row in rows.items() if row["target"] is not None}
    assert set(targets) == {
        "requests answered",
        *(
            f"{worker}: KV blocks {when}, of all"
            for worker in ("prompt-0", "token-0")
            for when in ("used at the peak", "free at the end")
        ),
    }
    assert all(targets.values()), targets
    for worker in ("prompt-0", "token-0"):
        assert rows[f"{worker}: KV blocks used at the peak, of all"]["ours"] > 0
        assert (
            rows[f"{worker}: resident at the peak, MiB"]["ours"] >= rows[f"{worker}: resident before, MiB"]["ours"] > 0
        )
    asked = storm(100, 1, UniformSizes((32, 64), (1, 8)))
    blocks = [-(-(arrival.input_tokens + arrival.output_tokens) // 16) for arrival in asked]
    assert sum(blocks) > rows["token-0: KV blocks used at the peak, of all"]["reference"]
    mesh.wait_until_idle()
