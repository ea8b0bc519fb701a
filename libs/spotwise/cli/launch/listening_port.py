"""The gateways' ports, tested before the start."""

from __future__ import annotations

import contextlib
import errno
import socket

from spotwise.cli.errors import CommandError, OptionError
from spotwise.mesh.process.quiet_ports import quiet_ports

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
    *likely, any_port = quiet_ports()
    for port in likely:
        try:
            return _open_port(host, port, probes)
        except OptionError:  # the host's
            raise
        except CommandError:
            continue
    return _open_port(host, any_port, probes)


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
