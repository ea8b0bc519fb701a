"""What the client programs share: named checks, which run one after the other in a process that reaches loopback only.

It needs the standard library alone, so that it runs in the environment of any client.
"""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, TypeVar

#: Base of the served API, without `/v1`, and the name of its model.
URL = os.environ.get("CLIENTS_URL", "")
MODEL = os.environ.get("CLIENTS_MODEL", "")
API_KEY = "none"
#: Of one request; a busy machine takes its time.
TIMEOUT_S = 300
QUESTION = "What is the capital of France?"

Item = TypeVar("Item")
Check = TypeVar("Check", bound=Callable[[], Any])
_checks: list[Callable[[], Any]] = []


class RemoteAddressError(Exception):
    """A client wanted to reach something that is not on this machine."""


def check(function: Check) -> Check:
    """Register a check; its name says what of the client it uses."""
    _checks.append(function)
    return function


def only(items: Sequence[Item] | None) -> Item:
    """Return the single item of a list, which a client may have as none."""
    (item,) = items or ()
    return item


def run(*distributions: str) -> None:
    """Run the program's checks, or those named as arguments, print what became of each, and exit with 1 if one failed.

    Args:
        distributions: the client's; their versions are printed.
    """
    sys.addaudithook(_refuse_remote_addresses)
    print(", ".join(f"{name} {version(name)}" for name in distributions), flush=True)
    chosen = sys.argv[1:]
    failed = 0
    for function in _checks:
        if not chosen or function.__name__ in chosen:
            failed += not _passes(function)
    sys.exit(1 if failed else 0)


def _passes(function: Callable[[], Any]) -> bool:
    began_s = time.monotonic()
    try:
        if inspect.iscoroutinefunction(function):
            asyncio.run(function())
        else:
            function()
    except Exception:  # the edge of a check: the next one runs all the same
        print(f"  FAILED {function.__name__}\n{traceback.format_exc()}", flush=True)
        return False
    print(f"  ok {function.__name__} ({time.monotonic() - began_s:.2f} s)", flush=True)
    return True


def _refuse_remote_addresses(event: str, arguments: tuple[Any, ...]) -> None:
    """Let no client send a telemetry, look for a newer version of itself, or fetch a tokenizer."""
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    name = host.decode() if isinstance(host, bytes) else host
    if name not in (None, "", "localhost") and not _is_loopback(name):
        raise RemoteAddressError(f"{event} of {name}")


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
