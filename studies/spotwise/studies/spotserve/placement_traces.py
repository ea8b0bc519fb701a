"""The placement study on Bamboo's two whole recordings, of g4dn and p3 spot instances."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spotwise.files.spot_traces import SpotEventKind, SpotTrace, read_spot_trace
from spotwise.studies.spotserve.placement_study import PlacementFinding, study_placements
from spotwise.studies.spotserve.placement_world import NodeEvent, PlacementSetting

_FILES = {"g4dn": "g4dn-trace.csv", "p3": "p3-trace.csv"}


def node_events(trace: SpotTrace) -> list[NodeEvent]:
    """Return joins and preemptions, one event per instance."""
    events: list[NodeEvent] = []
    for event in trace.events:
        if event.kind is SpotEventKind.ADD:
            events += [(event.time_s, "add", node) for node in event.nodes]
        elif event.kind is SpotEventKind.REMOVE:
            events += [(event.time_s, "remove", node) for node in event.nodes]
    return events


def placements(folder: Path, seeds: Sequence[int], setting: PlacementSetting | None = None) -> list[PlacementFinding]:
    """Compare the placement rules on both traces of `folder`/`bamboo/` over at least two seeds; `setting` `None` takes the
    defaults. Raises TraceError if a trace cannot be read."""
    traces = {name: node_events(read_spot_trace(folder / "bamboo" / file, name)) for name, file in _FILES.items()}
    return list(study_placements(traces, setting or PlacementSetting(), seeds))
