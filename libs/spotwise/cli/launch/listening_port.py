"""The gateway's port, tested before the start."""

from __future__ import annotations

import errno
import socket

from spotwise.cli.errors import CommandError, OptionError


def open_port(host: str, port: int) -> int:
    """Return `port`, or a free port for 0, after a trial bind on `host`.

    Raises:
        CommandError: the port is taken, or not allowed.
        OptionError: `host` is no address of this machine.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
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
