"""What `spotwise up` makes of what was named and what was not, and what it warns of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spotwise.cli.errors import OptionError
from spotwise.cli.launch import model_options, up
from spotwise.cli.launch.gateway_options import require_keys
from spotwise.cli.launch.given_options import EngineKind, FleetChoice, LaunchOptions
from spotwise.cli.launch.model_options import ModelChoice, require_device
from spotwise.cli.launch.options import GroupShape, MeshOptions, WorkerPools
from spotwise.cli.launch.worker_options import PoolOptions, parse_parallel, planned_pools
from spotwise.cli.report import public_access_warning
from tests.unit.cli.builders import mesh_options
from tests.unit.cli.command_line import CommandLine


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({}, (1, 1, 0)),
        ({"prompt_workers": 2}, (2, 1, 0)),
        ({"token_workers": 3}, (1, 3, 0)),
        ({"mixed_workers": 1}, (0, 0, 1)),
        ({"prompt_workers": 1, "mixed_workers": 2}, (1, 0, 2)),
        ({"token_workers": 2, "mixed_workers": 1}, (0, 2, 1)),
        ({"prompt_workers": 0, "token_workers": 0, "mixed_workers": 1}, (0, 0, 1)),
        ({"prompt_workers": 0}, (0, 1, 0)),  # refused afterwards: no worker for prompts
    ],
)
def test_pools_that_were_not_named(named: dict[str, int], expected: tuple[int, int, int]) -> None:
    """One worker of each phase; beside mixed workers none, because those do both."""
    pools = planned_pools(PoolOptions.model_validate(named), is_bought=False)
    assert (pools.prompt_workers, pools.token_workers, pools.mixed_workers) == expected


@pytest.mark.parametrize(("nodes", "expected"), [(1, (1, 1, 0)), (2, (1, 1, 0)), (3, (1, 2, 0)), (4, (2, 2, 0))])
def test_each_of_several_nodes_has_a_worker(nodes: int, expected: tuple[int, int, int]) -> None:
    """Half of them for prompts; where workers are named, or machines bought, only those that are."""

    def counted(named: dict[str, Any], *, is_bought: bool = False) -> tuple[int, int, int]:
        found = planned_pools(PoolOptions.model_validate(named), is_bought=is_bought, nodes=nodes)
        return found.prompt_workers, found.token_workers, found.mixed_workers

    assert counted({}) == expected
    assert counted({"token_workers": 3}) == (1, 3, 0)
    assert counted({"mixed_workers": 1}) == (0, 0, 1)
    assert counted({"parallel": "2,1,1"}) == (0, 0, 2)
    assert counted({}, is_bought=True) == (0, 0, 0)


@pytest.mark.parametrize(("engine", "workers"), [("torch", 4), ("simulated", 2)])
def test_up_counts_the_nodes_of_this_machine(engine: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated workers take no cores."""
    monkeypatch.setattr(up, "nodes_here", lambda device: [device] * 4)
    given = (PoolOptions(), FleetChoice(), ModelChoice(model="m"), LaunchOptions(engine=EngineKind(engine)))
    assert up.checked_options(*given).num_workers == workers


def options(host: str) -> MeshOptions:
    return mesh_options(host=host, port=8000, allow_anonymous=True)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.0.2.7", "example.org", "127.0.0.1", "localhost", "::1", "127.8.8.8"]
)
def test_a_public_gateway_without_keys_gets_a_warning(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the risk and the remedy; not one of this machine alone."""
    monkeypatch.delenv("SPOTWISE_API_KEYS", raising=False)
    warning = public_access_warning(options(host))
    if host.startswith("127.") or host in ("localhost", "::1"):
        assert warning is None
        return
    assert warning is not None
    assert "any client that reaches port 8000" in warning
    assert "SPOTWISE_API_KEYS" in warning
    monkeypatch.setenv("SPOTWISE_API_KEYS", "key")
    assert public_access_warning(options(host)) is None


@pytest.mark.parametrize(
    ("host", "given", "environment", "is_refused"),
    [
        ("0.0.0.0", {}, {}, True),
        ("example.org", {}, {}, True),
        ("127.0.0.1", {}, {}, False),
        ("0.0.0.0", {"allow_anonymous": True}, {}, False),
        ("0.0.0.0", {"has_own_store": False}, {}, False),
        ("0.0.0.0", {}, {"SPOTWISE_API_KEYS": "key"}, False),
        ("0.0.0.0", {"api_keys_file": Path("keys.jsonl")}, {}, False),
        ("0.0.0.0", {}, {"SPOTWISE_ALLOW_ANONYMOUS": "false"}, False),
    ],
)
def test_a_gateway_that_any_client_could_use_is_refused(
    host: str,
    given: dict[str, Any],
    environment: dict[str, str],
    is_refused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything starts, with the ways out; a shared store may have keys, and the gateway looks there."""
    for variable in ("SPOTWISE_API_KEYS", "SPOTWISE_ALLOW_ANONYMOUS"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    arguments: dict[str, Any] = {"allow_anonymous": False, "has_own_store": True} | given
    if not is_refused:
        require_keys(host, **arguments)
        return
    with pytest.raises(OptionError, match=rf"--host {host}.*SPOTWISE_API_KEYS.*keys create.*--allow-anonymous"):
        require_keys(host, **arguments)


def pools(prompt: int = 0, token: int = 0, mixed: int = 0, **shapes: GroupShape) -> WorkerPools:
    return WorkerPools.model_validate(
        {"prompt_workers": prompt, "token_workers": token, "mixed_workers": mixed, **shapes}
    )


def shape(stages: int, shards: int) -> GroupShape:
    return GroupShape(stages=stages, shards=shards)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,2,3", pools(mixed=1, mixed_shape=shape(2, 3))),
        ("1,1,3+1,2,1", pools(prompt=1, token=1, prompt_shape=shape(1, 3), token_shape=shape(2, 1))),
        ("2+4,1,3", pools(prompt=2, token=4, prompt_shape=shape(1, 3), token_shape=shape(1, 3))),
        (" 1, 2, 1 ", pools(mixed=1, mixed_shape=shape(2, 1))),
    ],
)
def test_pools_have_shapes(text: str, expected: WorkerPools) -> None:
    assert parse_parallel(text) == expected


@pytest.mark.parametrize("text", ["", "2", "1,2", "0,1,1", "1,1,3,8", "1,1,3+1", "a,b,c", "1,1,3+1,2,1+1,1,1"])
def test_a_parallel_option_of_another_form_is_refused_with_an_example(text: str) -> None:
    """A batch size too: each worker has its own setting."""
    with pytest.raises(OptionError, match=r"--parallel: .*for instance 1,2,3"):
        parse_parallel(text)


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("cuda", 0, "torch sees no CUDA device here; use --device cpu"),
        ("cuda:1", 0, "torch sees no CUDA device here"),
        ("cuda:2", 2, "there are 2 CUDA devices here, cuda:0 to cuda:1"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    name: str, count: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_options, "_cuda_devices", lambda: count)
    with pytest.raises(OptionError, match=message) as error:
        require_device(name)
    assert str(error.value).startswith(f"--device {name}: ")
    assert error.value.exit_status == 2


@pytest.mark.parametrize(("name", "count"), [("cpu", 0), ("auto", 0), ("cuda", 1), ("cuda:0", 1), ("cuda:7", 8)])
def test_a_device_that_is_there_is_taken(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_options, "_cuda_devices", lambda: count)
    require_device(name)


def test_torch_counts_the_devices_and_a_machine_without_torch_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken installation would not compute on a GPU either."""
    monkeypatch.setattr(model_options, "_COUNT", ("-c", "print(3)"))
    assert model_options._cuda_devices() == 3
    monkeypatch.setattr(model_options, "_COUNT", ("-c", "raise ImportError"))
    assert model_options._cuda_devices() == 0


def test_up_refuses_it_before_a_model_is_looked_for(spotwise: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 2 and one line; nothing was started, and simulated workers need no model_options."""
    monkeypatch.setattr(model_options, "_cuda_devices", lambda: 0)
    ended = spotwise("up", "--device", "cuda")
    assert (ended.status, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: --device cuda: torch sees no CUDA device here")
    ended = spotwise("up", "--device", "cuda", "--engine", "simulated", "--model", "/no/such/folder")
    assert "no model" in ended.stderr
