"""A command's access to a gateway over HTTP: its address, the user's key, and no proxy for this machine's loopback."""

from __future__ import annotations

import ipaddress
import os
from typing import TypedDict
from urllib.parse import urlsplit

from spotwise.cli.errors import OptionError
from spotwise.cli.mesh_access import running_state


class ClientOptions(TypedDict):
    """Arguments of an HTTP client, blocking or not."""

    base_url: str
    headers: dict[str, str]
    trust_env: bool


def find_gateway(name: str, url: str | None) -> str:
    """Return `url`, or the gateway's URL of this machine's mesh of that name; without `/v1`.

    Raises:
        CommandError: `url` is None and no such mesh runs here.
        OptionError: `url` is no gateway's URL.
    """
    if url is None:
        return running_state(name).options.url
    root = url.rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(root)
        is_gateway = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a bracket left open
        is_gateway = False
    if not is_gateway:
        raise OptionError(f"--url {url!r} is no gateway's URL; write for instance http://127.0.0.1:8000")
    return root


def client_options(url: str) -> ClientOptions:
    """Arguments of an HTTP client to this gateway, with `SPOTWISE_API_KEY` as its bearer key where it is set."""
    api_key = os.environ.get("SPOTWISE_API_KEY")
    return {
        "base_url": url,
        "headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
        # A proxy that the environment names cannot reach this machine's loopback.
        "trust_env": not _is_loopback(url),
    }


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
