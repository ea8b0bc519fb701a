"""How a command finds a running mesh."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.cli.errors import CommandError
from spotwise.cli.run_folder import run_folder
from spotwise.cli.run_state import RunState, read_state


@dataclass(frozen=True, slots=True)
class MeshAddresses:
    """Where a mesh is reached."""

    nats_url: str
    redis_url: str


def running_state(name: str) -> RunState:
    """Return the state of this machine's mesh of that name.

    Raises:
        CommandError: no such mesh runs here.
    """
    state = read_state(run_folder(name).state_path)
    if state is None:
        raise CommandError(
            f"no mesh named {name!r} runs here; start one with `spotwise up`, or name one elsewhere by its address"
        )
    return state


def find_mesh(name: str, nats_url: str | None = None, redis_url: str | None = None) -> MeshAddresses:
    """Return the addresses that were given, or those of this machine's mesh of that name.

    Raises:
        CommandError: no such mesh runs here and an address is missing.
    """
    if nats_url and redis_url:
        return MeshAddresses(nats_url, redis_url)
    state = running_state(name)
    return MeshAddresses(nats_url or state.nats_url, redis_url or state.redis_url)


def find_store(name: str, redis_url: str | None) -> str:
    """Return the store that was given, or that of this machine's mesh of that name.

    Raises:
        CommandError: none was given and no such mesh runs here.
    """
    return redis_url or running_state(name).redis_url
