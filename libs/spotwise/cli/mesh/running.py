"""Finds a running mesh, its broker and its store. Imports none of their clients: without a mesh a command says so
at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.cli.errors import CommandError, OptionError
from spotwise.cli.launch.run_folder import run_folder
from spotwise.cli.launch.supervision.run_state import RunState, read_state
from spotwise.cli.mesh.server_addresses import server_addresses


@dataclass(frozen=True, slots=True)
class MeshAddresses:
    """The addresses of a mesh's broker and store."""

    nats_url: str
    redis_url: str


def running_state(name: str) -> RunState:
    """Return the state of this machine's mesh of that name; raises `CommandError` where no such mesh runs here."""
    folder = run_folder(name)
    state = read_state(folder.state_path)
    if state is None and folder.holder() is not None:
        raise CommandError(
            f"mesh {name!r} starts, or its record {folder.state_path} is damaged: try again, or stop it with "
            f"`spotwise down{folder.name_option}`"
        )
    if state is None:
        raise CommandError(f"no mesh named {name!r} runs here; start one with `spotwise up`, or give one's address")
    return state


def find_mesh(name: str, nats_url: str | None, redis_url: str | None) -> MeshAddresses:
    """Return the given addresses, or those of this machine's mesh of that name; never one of each.

    Raises:
        CommandError: no address was given and no such mesh runs here.
        OptionError: an address is no server's URL, or only one was given.
    """
    if (nats_url is None) != (redis_url is None):
        given, missing = ("--nats-url", "--redis-url") if redis_url is None else ("--redis-url", "--nats-url")
        raise OptionError(f"{given} names a mesh on other machines; give its {missing}, too")
    return MeshAddresses(find_broker(name, nats_url), find_store(name, redis_url))


def find_broker(name: str, nats_url: str | None) -> str:
    """Return `nats_url`, or this machine's mesh's broker.

    Raises:
        CommandError: `nats_url` is None and no such mesh runs here.
        OptionError: `nats_url` is no broker's URL.
    """
    if nats_url is None:
        return running_state(name).nats_url
    server_addresses(nats_url, "--nats-url")
    return nats_url


def find_store(name: str, redis_url: str | None) -> str:
    """Return `redis_url`, or the store of this machine's mesh of that name.

    Raises:
        CommandError: `redis_url` is None and no such mesh runs here.
        OptionError: `redis_url` is no store's URL.
    """
    if redis_url is None:
        return running_state(name).redis_url
    server_addresses(redis_url, "--redis-url")
    return redis_url
