"""Which cores, threads and weights each process of a machine gets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.cli.launch import worker_cores
from spotwise.cli.launch.mesh_processes import joining_worker, mesh_processes
from spotwise.cli.launch.service_process import StopOrder
from spotwise.cli.launch.worker_cores import LocalHost, computing_nodes, core_shares, nodes_here
from spotwise.worker.topology import Node, Topology, format_cpus
from tests.unit.cli.builders import mesh_options
from tests.unit.worker.machines import GIB, read_machine, write, write_machine


def machine(nodes: int = 2, cores: int = 4, *, siblings: bool = False, **changes: Any) -> LocalHost:
    """A machine of so many nodes of so many cores, numbered node by node; siblings follow after all cores."""
    every = nodes * cores
    by_node = [
        Node(
            number,
            tuple((cpu, cpu + every) if siblings else (cpu,) for cpu in range(number * cores, (number + 1) * cores)),
            32 * GIB,
        )
        for number in range(nodes)
    ]
    return LocalHost(
        Topology(tuple(by_node), tuple(range(nodes))), **{"native_kernels": True, "free_bytes": 64 * GIB, **changes}
    )


def envs(host: LocalHost, **options: Any) -> dict[str, Mapping[str, str]]:
    services = mesh_processes(mesh_options(**options), "nats://h", "redis://h", host)
    return {service.service_id: service.env for service in services if service.stop_order is StopOrder.WORKER}


def placed(host: LocalHost, **options: Any) -> dict[str, tuple[str | None, str, bool]]:
    """CPUs, threads, and whether these are pinned, of each process."""
    return {
        name: (env.get("SPOTWISE_CORES"), env["SPOTWISE_THREADS"], env.get("SPOTWISE_PIN_THREADS") == "true")
        for name, env in envs(host, **options).items()
    }


def test_one_worker_has_each_node() -> None:
    """A thread for each physical core, pinned; the siblings are for the process's other threads."""
    assert placed(machine()) == {"prompt-0": ("0-3", "4", True), "token-0": ("4-7", "4", True)}
    assert placed(machine(siblings=True)) == {
        "prompt-0": ("0-3,8-11", "4", True),
        "token-0": ("4-7,12-15", "4", True),
    }


def test_a_worker_that_has_a_node_does_not_step_back() -> None:
    """Nothing else computes on its cores."""
    assert envs(machine())["token-0"]["SPOTWISE_NICENESS"] == "0"


def test_a_worker_of_several_nodes_uses_all() -> None:
    assert placed(machine(), prompt_workers=0, token_workers=0, mixed_workers=1) == {"mixed-0": ("0-7", "8", True)}
    assert placed(machine(nodes=4, cores=2)) == {"prompt-0": ("0-3", "4", True), "token-0": ("4-7", "4", True)}


def test_workers_of_one_node_share_it_and_borrow_idle_time() -> None:
    """Threads keep to the node and to no core of it; elsewhere a worker may be alone."""
    assert placed(machine(), token_workers=2) == {
        "prompt-0": ("0-3", "4", True),
        "token-0": ("4-7", "4", False),
        "token-1": ("4-7", "4", False),
    }
    assert envs(machine(), token_workers=2)["token-1"]["SPOTWISE_NICENESS"] == "8"


def test_without_native_kernels_workers_of_one_node_have_shares_of_it() -> None:
    """OpenMP's threads keep to the process's cores, and are not pinned here."""
    assert placed(machine(native_kernels=False), token_workers=3) == {
        "prompt-0": ("0-1", "2", False),
        "token-0": ("2-3", "2", False),
        "token-1": ("4-5", "2", False),
        "token-2": ("6-7", "2", False),
    }


def test_the_users_threads_count() -> None:
    """Siblings are used where there are more threads than cores; more than there are CPUs are not pinned."""
    host = machine(siblings=True)
    assert placed(host, threads=2)["token-0"] == ("4-7,12-15", "2", True)
    assert placed(host, threads=6)["token-0"] == ("4-7,12-15", "6", True)
    assert placed(host, threads=9)["token-0"] == ("4-7,12-15", "9", False)


def test_a_groups_processes_are_spread_over_nodes() -> None:
    """Each has one thread, beside the memory of its own part of the weights; spare devices have a part as well."""
    mixed: dict[str, Any] = {"prompt_workers": 0, "token_workers": 0, "mixed_workers": 1, "reshapable": True}
    assert placed(machine(), **mixed, mixed_shape={"stages": 1, "shards": 2}) == {
        "mixed-0": ("0-3", "1", True),
        "mixed-0-device-1": ("4-7", "1", True),
    }
    assert placed(machine(), **mixed, spare_devices=1) == {
        "mixed-0": ("0-3", "4", True),
        "device-0": ("4-7", "1", True),
    }


@pytest.mark.parametrize(
    "options", [{}, {"mixed_workers": 1}, {"threads": 3}, {"reshapable": True, "spare_devices": 2}]
)
def test_on_one_node_no_thread_is_pinned(options: dict[str, Any]) -> None:
    """A prompt and a token worker on a laptop borrow each other's idle time."""
    found = envs(machine(nodes=1, cores=2), **options)
    assert all("SPOTWISE_PIN_THREADS" not in env for env in found.values())
    shared = Path("/cache/weights")
    for env in envs(machine(nodes=1, cores=2), shared_weights=shared, **options).values():
        assert env["SPOTWISE_SHARED_WEIGHTS"] == str(shared)


def test_siblings_of_one_node_are_cores_as_ever() -> None:
    assert placed(machine(nodes=1, cores=2, siblings=True)) == {
        "prompt-0": (None, "4", False),
        "token-0": (None, "4", False),
    }


@pytest.mark.parametrize(
    ("device", "has_gpu", "several"),
    [
        ("cpu", True, True),
        ("auto", False, True),
        ("auto", True, False),
        ("cuda", False, False),
        ("cuda:1", True, False),
    ],
)
def test_nodes_matter_where_cpus_compute(device: str, has_gpu: bool, several: bool) -> None:
    host = machine(has_gpu=has_gpu)
    assert bool(computing_nodes(device, host.topology, has_gpu=has_gpu)) == several
    assert all(bool(share.nodes) == several for share in core_shares(mesh_options(device=device), 2, host))


def test_a_node_with_few_usable_cores_gets_no_worker() -> None:
    """An affinity mask that leaves one core of the second socket would halve the pipeline's speed."""
    nodes = (Node(0, tuple((cpu,) for cpu in range(8))), Node(1, ((8,),)))
    assert computing_nodes("cpu", Topology(nodes), has_gpu=False) == ()
    even = (*nodes, Node(2, tuple((cpu,) for cpu in range(16, 20))))
    assert [node.number for node in computing_nodes("cpu", Topology(even), has_gpu=False)] == [0, 2]


def test_granted_time_is_not_that_of_certain_cores(tmp_path: Path) -> None:
    """Other containers run on all of them: threads are as many as time is granted for, and none is pinned."""
    folder = write_machine(tmp_path, {0: "0-7,16-23", 1: "8-15,24-31"}, [f"{cpu},{cpu + 16}" for cpu in range(16)])
    write(folder / "fs/cgroup/cpu.max", "600000 100000")
    host = LocalHost(read_machine(tmp_path), native_kernels=True)
    assert host.num_cores == 6
    assert placed(host) == {"prompt-0": ("0-7,16-23", "3", False), "token-0": ("8-15,24-31", "3", False)}
    folder = write_machine(tmp_path / "one", {0: "0-31"})
    write(folder / "fs/cgroup/cpu.max", "250000 100000")
    host = LocalHost(read_machine(tmp_path / "one"), native_kernels=True)
    assert placed(host) == {"prompt-0": (None, "2", False), "token-0": (None, "2", False)}
    assert placed(LocalHost(host.topology, native_kernels=False))["prompt-0"] == (None, "1", False)


def test_a_worker_that_joins_has_no_cores_of_its_own() -> None:
    """Those of the present ones are taken."""
    joining = joining_worker(mesh_options(), "nats://h", "redis://h", "token", "token-7", machine())
    assert joining.env["SPOTWISE_THREADS"] == "4"
    assert not {"SPOTWISE_CORES", "SPOTWISE_PIN_THREADS"} & set(joining.env)


def model_folder(folder: Path, size_gib: int) -> Path:
    """A model whose weights have this size, without the bytes."""
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size_gib * GIB)
    return folder


@pytest.mark.parametrize(
    ("size_gib", "free_gib", "has_copies"),
    [(1, 64, True), (8, 64, True), (9, 64, False), (4, 31, False), (4, 32, True)],
)
def test_each_node_has_a_copy_of_the_weights_where_there_is_memory(
    tmp_path: Path, size_gib: int, free_gib: int, has_copies: bool
) -> None:
    """Widened to float32 it takes half of a node's free memory at most, and of what the process may take in all."""
    host = machine(free_bytes=free_gib * GIB)
    options: dict[str, Any] = {"model_folder": model_folder(tmp_path / "m", size_gib), "shared_weights": tmp_path / "w"}
    folders = [env["SPOTWISE_SHARED_WEIGHTS"] for env in envs(host, **options).values()]
    assert folders == (
        [str(tmp_path / "w/node-0"), str(tmp_path / "w/node-1")] if has_copies else [str(tmp_path / "w")] * 2
    )


def test_a_worker_of_several_nodes_and_one_without_memory_have_the_shared_copy(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model_folder": model_folder(tmp_path / "m", 1), "shared_weights": tmp_path / "w"}
    spanning = envs(machine(), prompt_workers=0, token_workers=0, mixed_workers=1, **options)
    assert spanning["mixed-0"]["SPOTWISE_SHARED_WEIGHTS"] == str(tmp_path / "w")
    nodes = (Node(0, ((0,), (1,)), 32 * GIB), Node(1, ((2,), (3,)), 0))
    without = envs(LocalHost(Topology(nodes, (0,)), native_kernels=True, free_bytes=64 * GIB), **options)
    assert {env["SPOTWISE_SHARED_WEIGHTS"] for env in without.values()} == {str(tmp_path / "w")}


@given(
    nodes=st.integers(1, 9),
    cores=st.integers(1, 9),
    processes=st.integers(1, 20),
    siblings=st.booleans(),
    native=st.booleans(),
    threads=st.one_of(st.none(), st.integers(1, 20)),
    core_time=st.one_of(st.none(), st.floats(0.1, 8)),
)
def test_shares_are_of_one_machine(
    nodes: int, cores: int, processes: int, siblings: bool, native: bool, threads: int | None, core_time: float | None
) -> None:
    """Whose cores are its own has them alone; who is pinned has one for each thread; nodes are used equally."""
    whole = machine(nodes, cores, siblings=siblings).topology
    limit = core_time if core_time is not None and core_time < len(whole.cpus) else None
    host = LocalHost(Topology(whole.nodes, whole.memory_nodes, limit), native)
    shares = core_shares(mesh_options(threads=threads), processes, host)
    assert len(shares) == processes
    for index, share in enumerate(shares):
        others = [cpu for other in (*shares[:index], *shares[index + 1 :]) for cpu in other.cores]
        assert set(share.cores) <= set(whole.cpus)
        assert len(set(share.cores)) == len(share.cores)
        assert not share.is_own or not set(share.cores).intersection(others)
        assert not share.is_pinned or (share.is_own and len(share.cores) >= share.threads and nodes > 1 and native)
        assert share.threads == threads or 1 <= share.threads <= len(whole.cpus)
        assert not share.is_own or limit is None
        assert set(share.cores) <= {cpu for node in share.nodes or whole.nodes for cpu in node.cpus}
    counts = [sum(node in share.nodes for share in shares) for node in whole.nodes]
    assert max(counts) - min(counts) <= 1
    assert bool(sum(counts)) == (nodes > 1)


def test_this_machines_nodes_are_those_of_its_topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_cores, "_GPUS", (tmp_path / "gpu",))
    monkeypatch.setattr(Topology, "read", lambda: machine(nodes=3).topology)
    assert [format_cpus(node.cpus) for node in nodes_here("auto")] == ["0-3", "4-7", "8-11"]
    write(tmp_path / "gpu", "")
    assert nodes_here("auto") == ()
    assert len(nodes_here("cpu")) == 3
    assert LocalHost.this().has_gpu
