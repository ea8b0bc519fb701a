"""Nodes of a trace that instances may have."""

from __future__ import annotations

import pytest

from spotwise.files.spot_traces import SpotEvent, SpotEventKind, SpotTrace
from spotwise.files.traced_nodes import TracedNodes

ADD, REMOVE = SpotEventKind.ADD, SpotEventKind.REMOVE
#: `a` leaves at 100 s and comes back at 150 s, `b` leaves with a notice of its own, `c` stays.
TRACE = SpotTrace(
    "nodes",
    (
        SpotEvent(0.0, ADD, ("b", "a")),
        SpotEvent(50.0, ADD, ("c",)),
        SpotEvent(100.0, REMOVE, ("a",)),
        SpotEvent(120.0, REMOVE, ("b",), notice_s=2.0),
        SpotEvent(150.0, ADD, ("a",)),
    ),
)


def names(nodes: TracedNodes, indices: list[int]) -> list[str]:
    return [nodes.stays[index].node for index in indices]


def test_a_node_is_free_while_it_is_up_without_notice_or_instance() -> None:
    """The first to come is the first to be given, nodes of one moment by name; a node's further stay is another one."""
    nodes = TracedNodes(TRACE, grace_s=30.0)
    assert names(nodes, nodes.free((), 0.0)) == ["a", "b"]
    assert names(nodes, nodes.free((0,), 60.0)) == ["b", "c"]
    assert names(nodes, nodes.free((), 70.0)) == ["b", "c"]  # `a` has its notice of 30 s
    assert names(nodes, nodes.free((), 117.9)) == ["b", "c"] and names(nodes, nodes.free((), 118.0)) == ["c"]
    assert names(nodes, nodes.free((), 150.0)) == ["c", "a"]
    assert [nodes.up(at_s) for at_s in (0.0, 50.0, 100.0, 120.0, 150.0)] == [2, 3, 2, 1, 2]


def test_compressed_seconds_and_missing_notices() -> None:
    """`compress` shortens lives and the trace's own notices, not the grace; without notices nodes just leave."""
    fast = TracedNodes(TRACE, compress=10.0, grace_s=3.0)
    assert [fast.end_s(index) for index in range(4)] == [10.0, 12.0, None, None]
    assert [fast.notice_s(index) for index in range(2)] == [3.0, 0.2]
    blunt = TracedNodes(TRACE, grace_s=30.0, with_notice=False)
    assert names(blunt, blunt.free((), 99.9)) == ["a", "b", "c"] and blunt.notice_s(1) == 0.0


@pytest.mark.parametrize(("compress", "grace_s"), [(0.0, 1.0), (1.0, -1.0)])
def test_impossible_paces_are_refused(compress: float, grace_s: float) -> None:
    with pytest.raises(ValueError, match="compress"):
        TracedNodes(TRACE, compress, grace_s)
