"""Recordings of preemptible machines are read as they are, and refused with the line that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.files.spot_traces import NodeLife, SpotEvent, SpotEventKind, SpotTrace, read_spot_trace
from spotwise.files.tables import TraceError
from spotwise.files.traced_nodes import TracedNodes

ADD, REMOVE, LOAD, DONE = SpotEventKind
SEGMENT = """[0, "add", {"nodes": ["a", "b"]}]
[60000, "other", {"nodes": [], "required_tpt": 0.8}]
[120000, "remove", {"nodes": ["a"], "required_tpt": 0.6}]

[150000, "no-op", {"nodes": [], "duration": 60000}]
[180000, "DONE", {"nodes": []}]
"""
EVENTS = "480000,add,n1\n480000,add,n2\n540000,remove,n1\n540000,add,n3\n540000,remove,n2\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "trace.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_segment_is_read_with_its_loads_and_its_end(tmp_path: Path) -> None:
    trace = read_spot_trace(written(tmp_path, SEGMENT), "A")
    assert trace.name == "A"
    assert trace.events == (
        SpotEvent(0.0, ADD, ("a", "b")),
        SpotEvent(60.0, LOAD, (), 0.8),
        SpotEvent(120.0, REMOVE, ("a",), 0.6),
        SpotEvent(180.0, DONE),
    )
    assert trace.counts() == ((0.0, 2), (60.0, 2), (120.0, 1), (180.0, 1))
    assert list(trace.lives()) == [NodeLife("a", 0.0, 120.0), NodeLife("b", 0.0, None)]


def test_a_segment_lasts_as_long_as_its_lines(tmp_path: Path) -> None:
    trace = read_spot_trace(written(tmp_path, '[0, "add", {"nodes": ["a"]}]\n[60000, "migration", {"nodes": []}]\n'))
    assert trace.events == (SpotEvent(0.0, ADD, ("a",)), SpotEvent(60.0, DONE))


def test_events_of_a_csv_at_one_time_are_one(tmp_path: Path) -> None:
    trace = read_spot_trace(written(tmp_path, EVENTS))
    assert trace.name == "trace"
    assert trace.events == (
        SpotEvent(480.0, ADD, ("n1", "n2")),
        SpotEvent(540.0, REMOVE, ("n1",)),
        SpotEvent(540.0, ADD, ("n3",)),
        SpotEvent(540.0, REMOVE, ("n2",)),
    )
    assert trace.end_s == 540.0
    assert trace.counts() == ((480.0, 2), (540.0, 1))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("1000,add\n", "line 1"),
        ("1000,add,a\n2000,lost,b\n", "line 2"),
        ("1000,add,a\n-5,add,b\n", "line 2"),
        ("1000,add,a\nnan,add,b\n", "line 2"),
        ("2000,add,a\n1000,add,b\n", "line 2: 1 s is earlier"),
        ("1000,add,a\n2000,add,a\n", "line 2: a comes and is there already"),
        ("1000,add,a\n1000,add,a\n", "line 2: a is listed twice"),
        ("1000,add,a\n2000,remove,b\n", "line 2: b goes and is not there"),
        ('[0, "add"]\n', "line 1: not a list"),
        ('[0, "add", {"nodes": ["a"]}\n', "line 1: not a list"),
        ('[0, "add", {"nodes": ["a", "a"]}]\n', "line 1: nodes are names"),
        ('[0, "add", {"nodes": [4]}]\n', "line 1: nodes are names"),
        ('[0, "add", {"nodes": []}]\n', "line 1: add names no nodes"),
        ('[0, "ADD", {"nodes": ["a"]}]\n', "line 1: 'ADD'"),
        ('[null, "add", {"nodes": ["a"]}]\n', "line 1: None is no time"),
        ('[0, "other", {"nodes": [], "required_tpt": 0}]\n', "line 1: required_tpt is 0"),
        ('[0, "no-op", {"nodes": []}]\n', "nothing happens"),
    ],
)
def test_an_error_has_its_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TraceError) as refused:
        read_spot_trace(path)
    assert str(path) in str(refused.value)
    assert said in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.txt cannot be read: No such file"):
        read_spot_trace(tmp_path / "none.txt")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(TraceError, match="no text file"):
        read_spot_trace(tmp_path / "bytes")


def test_traces_made_by_hand_keep_the_same_rules() -> None:
    with pytest.raises(ValueError, match="at least one event"):
        SpotTrace("none", ())
    with pytest.raises(ValueError, match="not in the order"):
        SpotTrace("back", (SpotEvent(5.0, ADD, ("a",)), SpotEvent(1.0, REMOVE, ("a",))))
    with pytest.raises(ValueError, match="b goes at 5 s"):
        SpotTrace("stray", (SpotEvent(5.0, REMOVE, ("b",)),))


def test_a_part_begins_with_the_instances_of_that_time(tmp_path: Path) -> None:
    trace = read_spot_trace(written(tmp_path, "0,add,a\n1000,add,b\n2000,remove,a\n3000,add,c\n4000,remove,b\n"))
    part = trace.part(2.0, 4.0)
    assert part.events == (SpotEvent(0.0, ADD, ("b",)), SpotEvent(1.0, ADD, ("c",)), SpotEvent(2.0, DONE))
    assert trace.part(4.5, 6.0).events == (SpotEvent(0.0, ADD, ("c",)), SpotEvent(1.5, DONE))
    loaded = read_spot_trace(written(tmp_path, SEGMENT)).part(90.0, 150.0)
    assert loaded.events[0] == SpotEvent(0.0, ADD, ("a", "b"), 0.8)
    with pytest.raises(ValueError, match="to a later one"):
        trace.part(4.0, 4.0)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40), st.integers(0, 20), st.integers(1, 20))
def test_a_part_has_as_many_instances_as_the_whole_at_that_time(
    moves: list[tuple[int, bool]], from_s: int, seconds: int
) -> None:
    here: set[str] = set()
    events = []
    for at, (node, comes) in enumerate(moves):
        name = f"n{node}"
        if comes != (name in here):
            events.append(SpotEvent(at / 2, ADD if comes else REMOVE, (name,)))
            (here.add if comes else here.remove)(name)
    trace = SpotTrace("whole", (SpotEvent(0.0, LOAD), *events))
    part = trace.part(float(from_s), float(from_s + seconds))

    def count_at(curve: tuple[tuple[float, int], ...], at_s: float) -> int:
        return max([(-1.0, 0), *((time_s, count) for time_s, count in curve if time_s <= at_s)], key=lambda p: p[0])[1]

    for step in range(2 * seconds):
        at_s = step / 2
        assert count_at(part.counts(), at_s) == count_at(trace.counts(), from_s + at_s)
    assert part.end_s == seconds


def test_a_removal_may_say_when_it_is_notified(tmp_path: Path) -> None:
    table = written(tmp_path, "0,add,a\n0,add,b\n0,add,c\n9000,remove,a,500\n9000,remove,b,500\n9000,remove,c\n")
    leaves = [(each.nodes, each.notice_s) for each in read_spot_trace(table).events[1:]]
    assert leaves == [(("a", "b"), 0.5), (("c",), None)]
    lines = written(tmp_path, '[0, "add", {"nodes": ["a"]}]\n[9000, "remove", {"nodes": ["a"], "notice_ms": 0}]\n')
    assert [(life.to_s, life.notice_s) for life in read_spot_trace(lines).lives()] == [(9.0, 0.0)]


@pytest.mark.parametrize("line", ["9000,add,b,500", "9000,remove,a,-1", "9000,remove,a,x", "9000,remove,a,1,2"])
def test_a_wrong_notice_is_an_error_with_its_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(TraceError, match=r"trace\.txt, line 2: "):
        read_spot_trace(written(tmp_path, f"0,add,a\n{line}\n"))


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


def nodes_at(nodes: TracedNodes, indices: list[int]) -> list[str]:
    return [nodes.stays[index].node for index in indices]


def test_a_node_is_free_while_it_is_up_without_notice_or_instance() -> None:
    """The first to come is the first to be given, nodes of one moment by name; a node's further stay is another one."""
    nodes = TracedNodes(TRACE, grace_s=30.0)
    assert nodes_at(nodes, nodes.free((), 0.0)) == ["a", "b"]
    assert nodes_at(nodes, nodes.free((0,), 60.0)) == ["b", "c"]
    assert nodes_at(nodes, nodes.free((), 70.0)) == ["b", "c"]  # `a` has its notice of 30 s
    assert nodes_at(nodes, nodes.free((), 117.9)) == ["b", "c"] and nodes_at(nodes, nodes.free((), 118.0)) == ["c"]
    assert nodes_at(nodes, nodes.free((), 150.0)) == ["c", "a"]
    assert [nodes.up(at_s) for at_s in (0.0, 50.0, 100.0, 120.0, 150.0)] == [2, 3, 2, 1, 2]


def test_compressed_seconds_and_missing_notices() -> None:
    """`compress` shortens lives and the trace's own notices, not the grace; without notices nodes just leave."""
    fast = TracedNodes(TRACE, compress=10.0, grace_s=3.0)
    assert [fast.end_s(index) for index in range(4)] == [10.0, 12.0, None, None]
    assert [fast.notice_s(index) for index in range(2)] == [3.0, 0.2]
    blunt = TracedNodes(TRACE, grace_s=30.0, with_notice=False)
    assert nodes_at(blunt, blunt.free((), 99.9)) == ["a", "b", "c"] and blunt.notice_s(1) == 0.0


@pytest.mark.parametrize(("compress", "grace_s"), [(0.0, 1.0), (1.0, -1.0)])
def test_impossible_paces_are_refused(compress: float, grace_s: float) -> None:
    with pytest.raises(ValueError, match="compress"):
        TracedNodes(TRACE, compress, grace_s)
