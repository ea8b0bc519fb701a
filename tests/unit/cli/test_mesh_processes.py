"""Options to processes and environments."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import ValidationError

from spotwise.cli.launch.given_options import EngineKind
from spotwise.cli.launch.mesh_processes import joining_worker, mesh_processes
from spotwise.cli.launch.service_process import ServiceProcess, StopOrder
from tests.unit.cli.builders import local_host, mesh_options

NATS = "nats://127.0.0.1:4222"
REDIS = "redis://127.0.0.1:6379/0"


def plan(
    cores: int = 2, environ: Mapping[str, str] = MappingProxyType({}), *, native: bool = False, **options: object
) -> dict[str, ServiceProcess]:
    mesh = mesh_options(**{"model_folder": Path("/models/tiny"), "model_name": "tiny", **options})
    services = mesh_processes(mesh, NATS, REDIS, local_host(cores, native=native), environ)
    assert len({service.service_id for service in services}) == len(services)
    return {service.service_id: service for service in services}


def test_the_default_mesh_has_six_services() -> None:
    services = plan()
    modules = {service_id: service.argv[-1] for service_id, service in services.items()}
    assert modules == {
        "gateway-0": "spotwise.gateway",
        "prompt-0": "spotwise.prompt_worker",
        "token-0": "spotwise.token_worker",
        "scheduler-0": "spotwise.cluster_scheduler",
        "planner-0": "spotwise.migration_planner",
        "watcher-0": "spotwise.spot_watcher",
    }
    assert all(service.argv[:3] == (sys.executable, "-P", "-m") for service in services.values())


def test_every_service_knows_itself_its_servers_and_the_model() -> None:
    """And does not contact a model hub."""
    for service_id, service in plan().items():
        assert (
            service.env.items()
            >= {
                "SPOTWISE_SERVICE_ID": service_id,
                "SPOTWISE_NATS_URL": NATS,
                "SPOTWISE_REDIS_URL": REDIS,
                "SPOTWISE_MODEL_DIR": "/models/tiny",
                "SPOTWISE_MODEL_NAME": "tiny",
                "HF_HUB_OFFLINE": "1",
            }.items()
        )


def test_every_service_knows_the_mesh_secret() -> None:
    secret = Path("/run/mesh.secret")
    services = plan(mesh_secret_file=secret)
    assert {service.env["SPOTWISE_MESH_SECRET_FILE"] for service in services.values()} == {str(secret)}
    options = mesh_options(mesh_secret_file=secret)
    joining = joining_worker(options, NATS, REDIS, "token", "token-7", local_host(1, native=True))
    assert joining.env["SPOTWISE_MESH_SECRET_FILE"] == str(secret)


def test_only_the_gateway_gets_a_listen_address() -> None:
    services = plan(host="0.0.0.0", port=9000)
    assert services["gateway-0"].env.items() >= {"SPOTWISE_HOST": "0.0.0.0", "SPOTWISE_PORT": "9000"}.items()
    assert [name for name, service in services.items() if "SPOTWISE_PORT" in service.env] == ["gateway-0"]


def test_services_of_which_there_are_several_are_numbered() -> None:
    """Each gateway has a port of its own; the control plane's replicas have equal settings."""
    services = plan(schedulers=2, planners=3, port=9000, further_ports=(9001,))
    ports = {name: each.env["SPOTWISE_PORT"] for name, each in services.items() if each.service == "gateway"}
    assert ports == {"gateway-0": "9000", "gateway-1": "9001"}
    names = [name for name, each in services.items() if each.service in ("cluster_scheduler", "migration_planner")]
    assert names == ["scheduler-0", "scheduler-1", "planner-0", "planner-1", "planner-2"]
    first, second = (dict(services[f"scheduler-{number}"].env) for number in range(2))
    assert first | {"SPOTWISE_SERVICE_ID": "scheduler-1"} == second


def test_replicas_serve_their_metrics_at_ports_of_their_own() -> None:
    """The port of the environment is the first one's; 0 takes a free one for each."""
    options = mesh_options(schedulers=2, planners=2)
    given = {"SPOTWISE_SCHEDULER_METRICS_PORT": "9500", "SPOTWISE_PLANNER_METRICS_PORT": "0"}
    services = mesh_processes(options, NATS, REDIS, local_host(1), given)
    set_ports = {each.service_id: value for each in services for name, value in each.env.items() if "METRICS" in name}
    assert set_ports == {"scheduler-1": "9501"}


def test_only_planner_and_watcher_are_dispensable() -> None:
    services = plan(prompt_workers=2)
    assert {name for name, service in services.items() if not service.is_essential} == {"planner-0", "watcher-0"}


def test_the_gateway_leaves_first_and_the_servers_last() -> None:
    """The gateway stops taking requests before the workers end, and every service can unregister from the store."""
    services = plan()
    orders = [services[name].stop_order for name in ("gateway-0", "token-0", "scheduler-0")]
    assert [*orders, StopOrder.SERVER] == sorted(StopOrder)


def test_workers_of_each_pool_run_the_service_that_can_do_its_phases() -> None:
    """A mixed worker is a token worker of the mixed pool."""
    services = plan(prompt_workers=1, token_workers=2, mixed_workers=1)
    workers = {
        service_id: (service.argv[-1], service.env["SPOTWISE_POOL"])
        for service_id, service in services.items()
        if service.stop_order is StopOrder.WORKER
    }
    assert workers == {
        "prompt-0": ("spotwise.prompt_worker", "prompt"),
        "token-0": ("spotwise.token_worker", "token"),
        "token-1": ("spotwise.token_worker", "token"),
        "mixed-0": ("spotwise.token_worker", "mixed"),
    }


@pytest.mark.parametrize(
    ("cores", "workers", "threads", "shares"),
    [
        (2, 2, "1", ["0", "1"]),
        (8, 2, "4", ["0-3", "4-7"]),
        (5, 2, "2", ["0-1", "2-3"]),
        (1, 2, "1", [None, None]),
    ],
)
def test_workers_share_the_cores(cores: int, workers: int, threads: str, shares: list[str | None]) -> None:
    """Each worker is pinned to its share of the cores; with fewer cores than workers none is pinned."""
    services = plan(cores=cores, prompt_workers=1, token_workers=workers - 1)
    envs = [service.env for service in services.values() if service.stop_order is StopOrder.WORKER]
    assert [env.get("SPOTWISE_CORES") for env in envs] == shares
    assert {env["SPOTWISE_THREADS"] for env in envs} == {threads}
    assert {env["OMP_NUM_THREADS"] for env in envs} == {threads}


@pytest.mark.parametrize(
    ("cores", "workers", "threads"), [(1, 2, "1"), (2, 2, "2"), (2, 4, "2"), (8, 2, "8"), (8, 4, "4"), (5, 2, "4")]
)
def test_native_workers_take_the_cores_of_an_idle_partner(cores: int, workers: int, threads: str) -> None:
    """Twice the share, on any core; where both compute, the token phase steps back."""
    services = plan(cores=cores, native=True, prompt_workers=1, token_workers=workers - 1)
    envs = {name: service.env for name, service in services.items() if service.stop_order is StopOrder.WORKER}
    assert {env["SPOTWISE_THREADS"] for env in envs.values()} == {threads}
    if threads != str(max(1, cores // workers)):
        assert all("SPOTWISE_CORES" not in env for env in envs.values())
        assert int(envs["token-0"]["SPOTWISE_NICENESS"]) > int(envs["prompt-0"]["SPOTWISE_NICENESS"]) == 0


@pytest.mark.parametrize("changes", [{"device": "cuda"}, {"dtype": "float16"}])
def test_what_torch_computes_keeps_to_its_share(changes: dict[str, Any]) -> None:
    """Torch workers are limited to their share of the cores; native kernels need no limit."""
    assert plan(cores=8, native=True, **changes)["token-0"].env["SPOTWISE_THREADS"] == "4"


def test_a_worker_is_not_pinned_to_fewer_cores_than_it_has_threads() -> None:
    env = plan(cores=4, threads=4)["token-0"].env
    assert env["SPOTWISE_THREADS"] == "4"
    assert "SPOTWISE_CORES" not in env


def test_services_without_a_model_keep_to_one_thread() -> None:
    """A service without a model must not take cores from the workers."""
    assert plan(cores=8)["gateway-0"].env["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("workers", [2, 8])
def test_workers_measure_their_kv_memory_and_know_how_many_share_it(workers: int) -> None:
    """Each divides what is free by all that start with it, also where none has taken any yet."""
    env = plan(token_workers=workers - 1)["token-0"].env
    assert (env["SPOTWISE_KV_CACHE_BYTES"], env["SPOTWISE_LOCAL_WORKERS"]) == ("auto", str(workers))


@pytest.mark.parametrize("option", ["shared_weights", "cost_profiles"])
def test_workers_share_weights_and_costs_where_there_is_a_folder_for_them(option: str) -> None:
    """All of them in one, so that a machine's are loaded or measured once; no other service knows of it."""
    variable = f"SPOTWISE_{option.upper()}"
    given: dict[str, Any] = {option: Path("/cache/folder")}
    services = plan(token_workers=2, **given)
    folders = {name: service.env[variable] for name, service in services.items() if variable in service.env}
    assert folders == dict.fromkeys(("prompt-0", "token-0", "token-1"), "/cache/folder")
    assert variable not in plan()["token-0"].env


def test_options_reach_the_workers() -> None:
    """A default does not override the user's option."""
    env = plan(dtype="float32", device="cuda:1", kv_cache_bytes=123456, threads=3)["prompt-0"].env
    expected = {"DTYPE": "float32", "DEVICE": "cuda:1", "KV_CACHE_BYTES": "123456", "THREADS": "3"}
    assert {name: env[f"SPOTWISE_{name}"] for name in expected} == expected


@pytest.mark.parametrize("engine", ["torch", "simulated"])
def test_a_policy_reaches_the_workers_only(engine: str) -> None:
    """Only workers get the policy and its options; without one the environment's own setting is left alone."""
    names = ("SPOTWISE_POLICY", "SPOTWISE_PROFILE", "SPOTWISE_KV_HOST_BYTES")
    given = plan(engine=engine, policy="mlfq", profile=Path("/p.json"), kv_host_bytes=77)
    assert [[given[worker].env[name] for name in names] for worker in ("prompt-0", "token-0")] == [
        ["mlfq", "/p.json", "77"]
    ] * 2
    for service in (given["gateway-0"], *plan(engine=engine).values()):
        assert not set(names) & set(service.env)


def test_simulated_workers_live_many_to_a_process() -> None:
    """A process has workers of one pool, about equally many and at most fifty; every worker has its name."""
    services = plan(engine="simulated", prompt_workers=60, token_workers=100, mixed_workers=1, speed=4.0)
    processes = [service for service in services.values() if service.stop_order is StopOrder.WORKER]
    assert {service.service_id: len(service.members) for service in processes} == {
        "prompt-0-to-29": 30,
        "prompt-30-to-59": 30,
        "token-0-to-49": 50,
        "token-50-to-99": 50,
        "mixed-0": 1,
    }
    assert sorted(member for service in processes for member in service.members if member.startswith("prompt")) == (
        sorted(f"prompt-{number}" for number in range(60))
    )
    for service in processes:
        assert service.argv[-1] == "spotwise.worker.simulated"
        assert service.env["SPOTWISE_MEMBERS"].split(",") == list(service.members)
        assert service.env["SPOTWISE_POOL"] == service.members[0].split("-")[0]
        assert (service.env["SPOTWISE_SPEED"], service.env["SPOTWISE_SIMULATED_KV"]) == ("4.0", "timed")
        assert not {"SPOTWISE_PROFILE", "SPOTWISE_KV_CACHE_BYTES"} & set(service.env)


def test_options_reach_simulated_workers() -> None:
    """With real KV fewer workers share a process."""
    options: dict[str, Any] = {"profile": Path("/p.json"), "simulated_kv": "real", "kv_cache_bytes": 12345}
    env = plan(engine="simulated", token_workers=20, **options)["token-0-to-9"].env
    expected = {"PROFILE": "/p.json", "SIMULATED_KV": "real", "KV_CACHE_BYTES": "12345"}
    assert {name: env[f"SPOTWISE_{name}"] for name in expected} == expected


def test_a_worker_that_joins_a_simulated_mesh_is_simulated() -> None:
    mesh = mesh_options(engine=EngineKind.SIMULATED)
    joining = joining_worker(mesh, NATS, REDIS, "mixed", "extra", local_host(1))
    assert joining.argv[-1] == "spotwise.worker.simulated"
    assert (joining.service_id, joining.members, joining.env["SPOTWISE_POOL"]) == ("extra", ("extra",), "mixed")


def test_other_services_are_their_only_member() -> None:
    """Under the id that they are started with."""
    assert {service.service_id for service in plan().values()} == {
        member for service in plan().values() for member in service.members
    }


@pytest.mark.parametrize(("prompt", "token"), [(0, 1), (1, 0), (0, 0)])
def test_a_mesh_without_a_worker_for_a_phase_is_refused(prompt: int, token: int) -> None:
    with pytest.raises(ValidationError, match="--prompt-workers"):
        plan(prompt_workers=prompt, token_workers=token)


def test_a_mixed_worker_alone_is_a_mesh() -> None:
    assert "mixed-0" in plan(prompt_workers=0, token_workers=0, mixed_workers=1)


def test_a_worker_of_several_processes_has_a_leader_and_devices() -> None:
    """All wait for one another at each step: one thread each, one niceness, and the memory that everyone has."""
    services = plan(
        prompt_workers=0, token_workers=0, mixed_workers=2, mixed_shape={"stages": 2, "shards": 2}, cores=8, native=True
    )
    leader = services["mixed-1"]
    assert leader.argv[-1] == "spotwise.token_worker"
    assert (leader.env["SPOTWISE_STAGES"], leader.env["SPOTWISE_SHARDS"]) == ("2", "2")
    devices = [services[f"mixed-1-device-{number}"] for number in (1, 2, 3)]
    for device in devices:
        assert device.argv[-1] == "spotwise.worker.groups"
        assert device.env["SPOTWISE_LEADER_ID"] == "mixed-1"
        assert "SPOTWISE_STAGES" not in device.env
        for name in ("SPOTWISE_THREADS", "SPOTWISE_NICENESS", "SPOTWISE_KV_CACHE_BYTES", "SPOTWISE_MODEL_DIR"):
            assert device.env[name] == leader.env[name]
    assert leader.env["SPOTWISE_THREADS"] == "1"
    assert len([service for service in services if service.startswith("mixed")]) == 8


def test_workers_that_a_reshape_may_change_are_devices_and_others_wait() -> None:
    """A leader's process is healthy as its device, since a re-shape may end its worker; spare devices have no leader."""
    services = plan(
        prompt_workers=0, token_workers=0, mixed_workers=1, reshapable=True, spare_devices=2, cores=4, native=True
    )
    leader = services["mixed-0"]
    assert leader.members == ("mixed-0-device-0",)
    assert leader.env["SPOTWISE_RESHAPABLE"] == "true"
    for name in ("device-0", "device-1"):
        assert services[name].argv[-1] == "spotwise.worker.groups"
        assert "SPOTWISE_LEADER_ID" not in services[name].env
        assert services[name].env["SPOTWISE_KV_CACHE_BYTES"] == leader.env["SPOTWISE_KV_CACHE_BYTES"]


def test_devices_of_simulated_groups_live_many_to_a_process() -> None:
    """A group's devices are in one process with its worker, fifty members at most; spare ones are by themselves."""
    shape = {"stages": 2, "shards": 2}
    services = plan(
        engine="simulated",
        prompt_workers=0,
        token_workers=0,
        mixed_workers=24,
        mixed_shape=shape,
        reshapable=True,
        spare_devices=2,
    )
    processes = [name for name in services if name.startswith("mixed-")]
    assert processes == ["mixed-0-to-7", "mixed-8-to-15", "mixed-16-to-23"]
    first = services["mixed-0-to-7"]
    assert first.argv[-1] == "spotwise.worker.simulated.groups"
    assert first.env["SPOTWISE_GROUPS"] == ",".join(f"mixed-{number}" for number in range(8))
    assert (first.env["SPOTWISE_STAGES"], first.env["SPOTWISE_SHARDS"]) == ("2", "2")
    assert first.members[:5] == (*(f"mixed-0-device-{number}" for number in range(4)), "mixed-1-device-0")
    assert len(first.members) == 32
    spare = services["device-0-to-1"]
    assert spare.members == ("device-0", "device-1")
    assert spare.env["SPOTWISE_SPARES"] == "device-0,device-1"
    assert "SPOTWISE_GROUPS" not in spare.env


def fleet_plan(
    cores: int = 4, environ: Mapping[str, str] = MappingProxyType({}), **options: object
) -> dict[str, ServiceProcess]:
    """The plan of a mesh that buys its instances."""
    given = {"file": "/fleet.toml", "folder": "/run/instances", "most_devices": 4}
    none = {"prompt_workers": 0, "token_workers": 0, "reshapable": True, "fleet": given}
    return plan(cores, environ, native=True, **{**none, **options})


def test_a_mesh_that_buys_its_instances_has_no_workers_at_first() -> None:
    assert set(fleet_plan()) == {"gateway-0", "scheduler-0", "planner-0", "watcher-0"}


def test_planner_and_watcher_of_a_fleet_get_its_file_and_each_its_options() -> None:
    """What is not given is left to the service's own environment."""
    given = {
        "file": "/fleet.toml",
        "folder": "/run/instances",
        "trace": "/trace.csv",
        "compress": 60,
        "grace_s": 5,
        "budget_per_h": 2.5,
        "on_demand_floor": 1,
        "spares": 0,
        "latency_target_s": 4,
        "max_unready_s": 150,
        "max_queue_s": 180,
    }
    expected = {
        "planner-0": {
            "FLEET_FILE": "/fleet.toml",
            "BUDGET_PER_H": "2.5",
            "ON_DEMAND_FLOOR": "1",
            "SPARE_INSTANCES": "0",
            "LATENCY_TARGET_S": "4.0",
        },
        "watcher-0": {
            "FLEET_FILE": "/fleet.toml",
            "FLEET_MESH": "mine",
            "FLEET_FOLDER": "/run/instances",
            "FLEET_TRACE": "/trace.csv",
            "FLEET_COMPRESS": "60.0",
            "FLEET_GRACE_S": "5.0",
        },
        "scheduler-0": {"MAX_UNREADY_S": "150.0", "MAX_QUEUE_S": "180.0"},
    }
    services, bare = fleet_plan(fleet=given, name="mine"), fleet_plan()
    always = {"FLEET_FILE", "FLEET_MESH", "FLEET_FOLDER", "ON_DEMAND_FLOOR", "FLEET_COMPRESS", "FLEET_GRACE_S"}
    for service_id, options in expected.items():
        assert {name: services[service_id].env[f"SPOTWISE_{name}"] for name in options} == options
        assert not {f"SPOTWISE_{name}" for name in options.keys() - always} & bare[service_id].env.keys()


def test_an_instance_gets_the_environment_of_a_device_from_its_watcher() -> None:
    """The share of one of all that there can be at once; a user's threads count."""
    watcher = fleet_plan()["watcher-0"].env
    assert (watcher["SPOTWISE_POOL"], watcher["SPOTWISE_THREADS"]) == ("mixed", "1")
    assert watcher["SPOTWISE_KV_CACHE_BYTES"] == "auto"
    assert int(watcher["SPOTWISE_LOCAL_WORKERS"]) >= 1
    assert "SPOTWISE_LEADER_ID" not in watcher
    assert fleet_plan(cores=8)["watcher-0"].env["SPOTWISE_THREADS"] == "2"
    assert fleet_plan(threads=3)["watcher-0"].env["SPOTWISE_THREADS"] == "3"


def test_instances_are_forked_unless_the_user_has_all_executed() -> None:
    """The first module is what an instance's command runs: by it the watcher's server knows the command."""
    imports = fleet_plan()["watcher-0"].env["SPOTWISE_FLEET_IMPORTS"].split(",")
    assert imports[0] == "spotwise.worker.groups"
    assert "spotwise.worker.groups.serve" in imports
    simulated = fleet_plan(engine="simulated")["watcher-0"].env
    assert simulated["SPOTWISE_FLEET_IMPORTS"] == json.loads(simulated["SPOTWISE_FLEET_COMMAND"])[-1]
    assert "SPOTWISE_FLEET_IMPORTS" not in fleet_plan(environ={"SPOTWISE_FORK_SERVER": "0"})["watcher-0"].env


def test_a_simulated_fleets_instance_is_a_simulated_device() -> None:
    watcher = fleet_plan(engine="simulated")["watcher-0"].env
    command = json.loads(watcher["SPOTWISE_FLEET_COMMAND"])
    assert command[-1] == "spotwise.worker.simulated.groups"
    assert "SPOTWISE_SPARES={instance_id}" in command
    fleet = {"file": "/fleet.toml", "folder": "/run/instances", "profile": "/fast.json"}
    profiled = fleet_plan(engine="simulated", fleet=fleet)["watcher-0"].env
    assert profiled["SPOTWISE_PROFILE"] == "/fast.json"
    given = fleet_plan(engine="simulated", fleet=fleet, profile="/own.json")["watcher-0"].env
    assert given["SPOTWISE_PROFILE"] == "/own.json"
    assert "SPOTWISE_PROFILE" not in fleet_plan(fleet=fleet)["watcher-0"].env
    assert "SPOTWISE_FLEET_COMMAND" not in fleet_plan()["watcher-0"].env
