"""A command's access to a gateway over HTTP: its address, the user's key, and no proxy for this machine's loopback."""

from __future__ import annotations

import ipaddress
import os
import ssl
from pathlib import Path
from typing import Annotated, TypeAlias, TypedDict
from urllib.parse import urlsplit

import typer

from spotwise.cli.errors import OptionError
from spotwise.cli.mesh.running import running_state

GatewayUrl: TypeAlias = Annotated[
    str | None, typer.Option("--url", help="A gateway; by default that of this machine's mesh.")
]
CaFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--ca", envvar="SPOTWISE_CA_FILE", help="Authorities (PEM) that the gateway's certificate may come from."
    ),
]


class ClientOptions(TypedDict):
    """Arguments of an HTTP client, blocking or not."""

    base_url: str
    headers: dict[str, str]
    trust_env: bool
    verify: ssl.SSLContext | bool


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


def client_options(url: str, ca_file: Path | None = None) -> ClientOptions:
    """Arguments of an HTTP client to this gateway, with `SPOTWISE_API_KEY` as its bearer key where it is set.

    Args:
        ca_file: authorities that the gateway's certificate may come from; by default the file in `SPOTWISE_CA_FILE`, or
            those of this machine.

    Raises:
        OptionError: the file holds no certificates.
    """
    if ca_file is None and os.environ.get("SPOTWISE_CA_FILE"):
        ca_file = Path(os.environ["SPOTWISE_CA_FILE"])
    api_key = os.environ.get("SPOTWISE_API_KEY")
    return {
        "base_url": url,
        "headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
        # A proxy that the environment names cannot reach this machine's loopback.
        "trust_env": not _is_loopback(url),
        "verify": True if ca_file is None else _trusting(ca_file),
    }


def _trusting(ca_file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl.SSLError, too
        raise OptionError(f"--ca (SPOTWISE_CA_FILE) {ca_file} holds no certificates (PEM): {error}") from error


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
