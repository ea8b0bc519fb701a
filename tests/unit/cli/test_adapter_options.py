"""Adapters of `spotwise up`: what is refused before anything starts, and what the services get."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from spotwise.cli.errors import OptionError
from spotwise.cli.launch.mesh_processes import mesh_processes
from spotwise.cli.launch.model_options import adapters_option, require_other_names
from tests.adapters import save_adapter
from tests.unit.cli.builders import local_host, mesh_options
from tests.unit.cli.command_line import RefusalOf
from tests.unit.engine.tiny_models import llama_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    auto: Any = AutoModelForCausalLM
    return save_adapter(tmp_path_factory.mktemp("adapters") / "law", auto.from_config(llama_config()), seed=1)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("SPOTWISE_ADAPTERS", raising=False)
    yield


def test_folders_become_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert adapters_option(()) == ""
    assert adapters_option(["law=law", "poems=./law"]) == f"law={folder},poems={folder}"
    monkeypatch.setenv("SPOTWISE_ADAPTERS", "tax=law")
    assert adapters_option(()) == f"tax={folder}"
    assert adapters_option(["law=law"]) == f"law={folder}"


def test_all_services_that_depend_on_the_model_get_them(folder: Path) -> None:
    options = mesh_options(adapters=f"law={folder}")
    services = mesh_processes(options, "nats://h", "redis://h", local_host(native=True))
    env = {service.service_id: service.env.get("SPOTWISE_ADAPTERS") for service in services}
    assert {env[service] for service in ("gateway-0", "prompt-0", "token-0")} == {f"law={folder}"}


@pytest.mark.parametrize("options", [{"engine": "simulated"}, {"reshapable": True}, {"mixed_shape": {"shards": 2}}])
def test_workers_that_cannot_serve_adapters(options: dict[str, Any]) -> None:
    """Simulated ones, those of several processes, and those that a re-shape may change."""
    with pytest.raises(ValueError, match="--adapter"):
        mesh_options(adapters="law=/a", mixed_workers=1, **options)


def test_an_adapter_is_not_called_as_the_model_is() -> None:
    """Which would hide one of them."""
    with pytest.raises(OptionError, match="--adapter m: the model itself"):
        require_other_names(mesh_options(adapters="law=/a,m=/b"))
    require_other_names(mesh_options(adapters="law=/a"))


def test_several_processes_a_worker_are_refused(refusal_of: RefusalOf, folder: Path) -> None:
    refusal = refusal_of(f"up --parallel 1,2,1 --adapter law={folder}")
    assert "--adapter" in refusal and "--mixed-workers" in refusal
