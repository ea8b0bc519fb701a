"""How a command finds a running mesh's broker and store."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.cli.errors import CommandError
from spotwise.cli.run_folder import run_folder
from spotwise.cli.run_state import read_state


@dataclass(frozen=True, slots=True)
class MeshAddresses:
    """Where a mesh is reached."""

    nats_url: str
    redis_url: str


def find_mesh(name: str, nats_url: str | None = None, redis_url: str | None = None) -> MeshAddresses:
    """Return the addresses that were given, or those of this machine's mesh of that name.

    Raises:
        CommandError: no such mesh runs here and an address is missing.
    """
    if nats_url and redis_url:
        return MeshAddresses(nats_url, redis_url)
    state = read_state(run_folder(name).state_path)
    if state is None:
        raise CommandError(
            f"no mesh named {name!r} runs here; start one with `spotwise up`, "
            "or name another one's servers with --nats-url and --redis-url"
        )
    return MeshAddresses(nats_url or state.nats_url, redis_url or state.redis_url)
