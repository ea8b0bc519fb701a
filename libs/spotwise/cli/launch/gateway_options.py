"""Checks of the gateway's options before a mesh starts: who may use it, and its certificate."""

from __future__ import annotations

import os
from pathlib import Path

from spotwise.cli.errors import OptionError
from spotwise.mesh.links.ucx_loopback import is_loopback
from spotwise.mesh.process.private_files import require_private


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
