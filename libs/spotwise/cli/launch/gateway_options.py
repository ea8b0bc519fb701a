"""Checks of the gateways' options before a mesh starts: who may use them, their servers, certificate and ports."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

from spotwise.cli.errors import CommandError, OptionError
from spotwise.cli.launch.given_options import LaunchOptions
from spotwise.cli.mesh.server_addresses import server_addresses
from spotwise.mesh.embedded.ports import quiet_ports
from spotwise.mesh.process.addresses import is_loopback
from spotwise.mesh.security.secrets import require_private

_LAST_PORT = 65535


def open_ports(host: str, port: int, count: int = 1) -> tuple[int, ...]:
    """Return `port` and those that follow it, `count` in all, or so many free ports for 0, after a trial bind on `host`.

    Raises:
        CommandError: a port is taken, or not allowed.
        OptionError: `host` is no address of this machine, or there are not so many ports after `port`.
    """
    if port + count - 1 > _LAST_PORT:
        raise OptionError(f"--gateways {count}: there are fewer ports from {port} on; choose a lower one with --port")
    with contextlib.ExitStack() as probes:  # bound until all are found, so that free ones differ
        if not port:
            return tuple(_free_port(host, probes) for _ in range(count))
        return tuple(_open_port(host, port + number, probes) for number in range(count))


def _free_port(host: str, probes: contextlib.ExitStack) -> int:
    for port in quiet_ports():
        try:
            return _open_port(host, port, probes)
        except OptionError:  # the host's
            raise
        except CommandError:
            if not port:
                raise
    raise AssertionError("the last of the ports to try is 0")


def _open_port(host: str, port: int, probes: contextlib.ExitStack) -> int:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        probe = probes.enter_context(socket.socket(family, socket.SOCK_STREAM))
        # As servers do: a connection closed a moment ago does not keep the port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        return int(probe.getsockname()[1])
    except (socket.gaierror, UnicodeError) as error:
        raise _no_address(host) from error
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise _no_address(host) from error
        raise CommandError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port (or --host)"
        ) from error


def _no_address(host: str) -> OptionError:
    return OptionError(f"--host {host!r} is no address of this machine; 0.0.0.0 means all of its own")


def require_servers(launch: LaunchOptions) -> None:
    """Check the URLs of servers that run already; raises `OptionError`, also for an option that only embedded ones have."""
    for url, option in ((launch.nats_url, "--nats-url"), (launch.redis_url, "--redis-url")):
        if url is not None:
            server_addresses(url, option)
    if launch.keep_store and launch.redis_url is not None:
        raise OptionError(
            "--keep-store: what the server of --redis-url keeps is its own configuration's; leave one out"
        )


def has_configured_keys(api_keys_file: Path | None) -> bool:
    """Whether the gateway has API keys from the environment, or a file of them."""
    return bool(os.environ.get("SPOTWISE_API_KEYS")) or api_keys_file is not None


def require_keys(host: str, allow_anonymous: bool, has_own_store: bool, api_keys_file: Path | None = None) -> None:
    """Refuse a gateway that any client of other machines could use, before anything starts; raises `OptionError`.

    A store that is shared may hold keys: there the gateway decides. With `SPOTWISE_ALLOW_ANONYMOUS=false` no client gets in
    until the first key is made.
    """
    configured = os.environ.get("SPOTWISE_ALLOW_ANONYMOUS", "").lower()
    if is_loopback(host) or allow_anonymous or configured or has_configured_keys(api_keys_file) or not has_own_store:
        return
    raise OptionError(
        f"--host {host}: there are no API keys, and any client that reaches this machine could use the mesh; set "
        "SPOTWISE_API_KEYS=KEY, or set SPOTWISE_ALLOW_ANONYMOUS=false and make keys with `spotwise keys create NAME` once it "
        "is up, or give --allow-anonymous where only trusted clients reach it"
    )


def require_pair(certificate: Path | None, key: Path | None) -> None:
    """Check the files of a certificate and its key; raises `OptionError` where one is missing, or the key is not private."""
    if (certificate is None) != (key is None):
        raise OptionError("--tls-cert and --tls-key: give both, or neither")
    if certificate is not None and key is not None:
        try:
            require_private(key)
        except ValueError as error:
            raise OptionError(f"--tls-key: {error}") from error
        if not certificate.is_file():
            raise OptionError(f"--tls-cert: there is no file {certificate}")
