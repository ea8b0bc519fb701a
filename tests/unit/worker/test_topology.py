"""What a process learns of its machine's processors, from folders as the kernel writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.worker.topology import Node, Topology, by_core, format_cpus, parse_cpus
from tests.unit.worker.machines import GIB, read_machine, write, write_machine


@given(st.lists(st.integers(0, 4095), unique=True))
def test_a_list_of_cpus_is_read_as_it_was_written(numbers: list[int]) -> None:
    """In its order, which says which threads get which."""
    assert parse_cpus(format_cpus(numbers)) == tuple(numbers)


def test_runs_of_cpus_are_written_as_ranges() -> None:
    assert format_cpus([0, 1, 2, 8, 5, 6]) == "0-2,8,5-6"
    assert parse_cpus("0-2,8,5-6") == (0, 1, 2, 8, 5, 6)
    assert (parse_cpus(""), format_cpus(())) == ((), "")


@pytest.mark.parametrize(
    "text", ["a", "1-", "-1", "1,,2", "1;2", "3-1", "0-99999999999", "1,1", "0-3,2", "0-3\n", "0 1"]
)
def test_what_is_no_list_of_cpus_is_refused(text: str) -> None:
    """Also a range without end, before it takes memory."""
    with pytest.raises(ValueError, match="CPU"):
        parse_cpus(text)


def test_a_machine_with_one_node(tmp_path: Path) -> None:
    write_machine(tmp_path, {0: "0-3"})
    assert read_machine(tmp_path) == Topology((Node(0, ((0,), (1,), (2,), (3,)), 32 * GIB),), (0,))


def test_nodes_have_their_cpus_cores_before_siblings(tmp_path: Path) -> None:
    """Two sockets of two cores of two threads, numbered as Linux does."""
    write_machine(tmp_path, {0: "0-1,4-5", 1: "2-3,6-7"}, ["0,4", "1,5", "2,6", "3,7"], free_gib={0: 16, 1: 24})
    machine = read_machine(tmp_path)
    assert machine.nodes == (Node(0, ((0, 4), (1, 5)), 16 * GIB), Node(1, ((2, 6), (3, 7)), 24 * GIB))
    assert [node.cpus for node in machine.nodes] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert machine.memory_nodes == (0, 1)
    assert machine.cpus == tuple(range(8))


def test_only_cpus_of_the_affinity_mask_are_used(tmp_path: Path) -> None:
    """A core of which one thread may be used is a core; a node without a usable CPU is none, but its memory is there."""
    write_machine(tmp_path, {0: "0-1,4-5", 1: "2-3,6-7"}, ["0,4", "1,5", "2,6", "3,7"])
    assert [node.cores for node in read_machine(tmp_path, "1,4-6").nodes] == [((1, 5), (4,)), ((6,),)]
    machine = read_machine(tmp_path, "2-3")
    assert [node.number for node in machine.nodes] == [1]
    assert machine.memory_nodes == (0, 1)


def test_a_node_that_is_memory_alone_gets_no_process(tmp_path: Path) -> None:
    write_machine(tmp_path, {0: "0-1", 1: ""})
    machine = read_machine(tmp_path)
    assert [node.number for node in machine.nodes] == [0]
    assert machine.memory_nodes == (0, 1)


def test_a_node_without_memory_has_none_free(tmp_path: Path) -> None:
    write_machine(tmp_path, {0: "0-1", 1: "2-3"}, free_gib={1: 0})
    machine = read_machine(tmp_path)
    assert [node.free_bytes for node in machine.nodes] == [32 * GIB, 0]
    assert machine.memory_nodes == (0,)


def test_cores_that_are_offline_are_left_out(tmp_path: Path) -> None:
    """Even where a mask names them."""
    write_machine(tmp_path, {0: "0-3", 1: "4-7"}, ["0,2", "1,3"], online="0-2,4,7")
    machine = read_machine(tmp_path, "0-7")
    assert [node.cores for node in machine.nodes] == [((0, 2), (1,)), ((4,), (7,))]


@pytest.mark.parametrize("nodes", [None, {0: "0"}, {0: "0-1", 1: ""}])
def test_where_nodes_are_not_told_of_there_is_one(tmp_path: Path, nodes: dict[int, str] | None) -> None:
    """A kernel or sandbox without them, or one that lists some CPUs only."""
    if nodes is not None:
        write_machine(tmp_path, nodes, online="0-2")
    machine = Topology.read([0, 1, 2], tmp_path / "sys", tmp_path / "proc")
    assert [(node.number, node.cores) for node in machine.nodes] == [(0, ((0,), (1,), (2,)))]


@pytest.mark.parametrize(
    ("files", "groups", "expected"),
    [
        ({}, "0::/\n", None),
        ({"cpu.max": "max 100000"}, "0::/\n", None),
        ({"cpu.max": "150000 100000"}, "0::/\n", 1.5),
        ({"cpu.max": "800000 100000"}, "0::/\n", None),
        ({"a/b/cpu.max": "300000 100000", "a/cpu.max": "200000 100000"}, "0::/a/b\n", 2.0),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, "0::/a/b\n", 2.0),
        ({"cpu.max": "200000 100000"}, "0::/of/the/host\n", 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu,cpuacct:/\n0::/\n", None),
        ({"cpu/x/cpu.cfs_quota_us": "250000", "cpu/x/cpu.cfs_period_us": "100000"}, "3:cpu,cpuacct:/x\n0::/\n", 2.5),
        ({"cpu.max": "nonsense"}, "0::/\n", None),
    ],
)
def test_control_groups_limit_the_time(
    tmp_path: Path, files: dict[str, str], groups: str, expected: float | None
) -> None:
    """The tightest group around the process counts; one that grants as much as there are CPUs does not."""
    folder = write_machine(tmp_path, {0: "0-7"})
    for name, text in files.items():
        write(folder / "fs/cgroup" / name, text)
    write(tmp_path / "proc/cgroup", groups.strip())
    assert read_machine(tmp_path).core_time == expected


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=4), max_size=8))
def test_first_threads_of_all_cores_come_before_second_ones(cores: list[list[int]]) -> None:
    ordered = by_core(tuple(core) for core in cores)
    assert ordered[: len(cores)] == tuple(core[0] for core in cores)
    assert sorted(ordered) == sorted(cpu for core in cores for cpu in core)


def test_this_machine_is_read() -> None:
    assert set(Topology.read().cpus) == os.sched_getaffinity(0)
