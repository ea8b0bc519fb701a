"""Tests of `--device cuda` with no or too few devices: an error before any process starts."""

from __future__ import annotations

import pytest

from spotwise.cli.errors import OptionError
from spotwise.cli.launch import model_options
from spotwise.cli.launch.model_options import require_device
from tests.unit.cli.command_line import CommandLine


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
