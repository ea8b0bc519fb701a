"""docs/simulator.md, "Your own cluster": the file that it links runs, and its tables have every key."""

from __future__ import annotations

import dataclasses
import re

from spotwise.simulator.loads.workload import ClusterWorkload, PriorityShare
from spotwise.simulator.runs.cluster_file import ClusterFile, MachineTerms, ObjectiveTerms, read_cluster
from spotwise.simulator.runs.experiment import simulate
from spotwise.simulator.runs.machine_changes import MachineChange
from spotwise.simulator.runs.serving_policy import ServingPolicy
from tests.unit.docs.docs_pages import ROOT, quoted, section

SECTION = section((ROOT / "docs" / "simulator.md").read_text(), "Your own cluster")
EXAMPLE = ROOT / "docs" / "examples" / "cluster" / "cluster.toml"


def rows(head: str) -> list[list[str]]:
    """The cells of the table that begins with this head."""
    (found,) = re.findall(rf"^\| {re.escape(head)} \| \|\n\| --- \| --- \|\n((?:\|.*\n)+)", SECTION, flags=re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]


def keys(head: str) -> set[str]:
    """The keys in its first column."""
    return {key for row in rows(head) for key in quoted(row[0])}


def test_the_example_runs() -> None:
    """With machines of all origins, of which some fail and others come and go."""
    assert f"({EXAMPLE.relative_to(ROOT / 'docs')})" in SECTION
    scenario = read_cluster(EXAMPLE)
    assert [group.kind.name for group in scenario.cluster.groups] == ["h100", "measured", "cheap"]
    run = simulate(scenario.case(ClusterWorkload("code"), 3.0, 45.0))
    assert (run.failed, run.joined, run.left) == (0, 3, 2)
    assert set(run.pools) == {"prompt", "token, measured", "token, cheap"}
    assert set(run.by_priority) == {0, 1}


def test_the_tables_have_every_key() -> None:
    assert keys("key of the file") == set(ClusterFile.model_fields)
    assert keys("key of `[[machines]]`") == set(MachineTerms.model_fields)
    explained = {quoted(row[0])[0]: set(quoted(row[1])) for row in rows("key of the file")}
    assert explained["objectives"] >= set(ObjectiveTerms.model_fields)
    for name, of in (("priorities", PriorityShare), ("events", MachineChange)):
        assert explained[name] >= {field.name for field in dataclasses.fields(of)}
    policy = {key for row in rows("key of `[policy]`") for cell in row for key in quoted(cell)}
    assert policy >= {field.name for field in dataclasses.fields(ServingPolicy)}


def test_its_profile_has_every_key() -> None:
    """As in the file of `spotwise profile`."""
    assert keys("key of a profile") == {
        "iteration",
        "kv_bytes_per_token",
        "kv_tokens",
        "link",
        "host_link",
        "message_s",
        "measured_range",
    }
