"""What `spotwise up` makes of what was not named, and what it warns of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spotwise.cli.errors import OptionError
from spotwise.cli.launch.gateway_options import require_keys
from spotwise.cli.launch.options import MeshOptions
from spotwise.cli.launch.worker_options import PoolOptions, planned_pools
from spotwise.cli.report import public_access_warning


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


def options(host: str) -> MeshOptions:
    return MeshOptions(
        name="default", model_folder=Path("/m"), model_name="m", host=host, port=8000, allow_anonymous=True
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_a_public_gateway_without_keys_gets_a_warning(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPOTWISE_API_KEYS", raising=False)
    warning = public_access_warning(options(host))
    assert warning is not None
    assert "any client that reaches port 8000" in warning
    assert "SPOTWISE_API_KEYS" in warning
    monkeypatch.setenv("SPOTWISE_API_KEYS", "key")
    assert public_access_warning(options(host)) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_a_gateway_of_this_machine_alone_needs_no_keys(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPOTWISE_API_KEYS", raising=False)
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
