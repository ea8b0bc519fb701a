"""Connects to the configured cloud, or to the one that is detected; the first match in the given order wins, so that metadata
precedes Kubernetes taints.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import structlog

from spotwise.cloud.aws import Aws
from spotwise.cloud.azure import Azure
from spotwise.cloud.dialogue import Cloud
from spotwise.cloud.gcp import Gcp
from spotwise.cloud.http_client import HttpClient
from spotwise.cloud.kubernetes import Kubernetes
from spotwise.mesh.ports.ports import MeshError
from spotwise.spot_watcher.settings import SpotWatcherSettings

_log = structlog.get_logger(__name__)

#: A machine that has just started may not have its network yet.
DETECTIONS = 5


@asynccontextmanager
async def cloud_of_this_machine(settings: SpotWatcherSettings) -> AsyncIterator[tuple[Cloud, HttpClient] | None]:
    """Yield the cloud and its metadata client; `None` where none is configured or detected. Raises `MeshError` where the API
    server's certificates cannot be read.
    """
    async with AsyncExitStack() as clients:
        candidates = []
        for cloud, url, tls in _candidates(settings):
            candidates.append(
                (cloud, await clients.enter_async_context(HttpClient(url, settings.cloud_timeout_s, tls)))
            )
        if settings.cloud == "auto":
            yield await _find(candidates, settings.cloud_backoff_s)
        else:
            yield candidates[0] if candidates else None


def _candidates(settings: SpotWatcherSettings) -> list[tuple[Cloud, str, ssl.SSLContext | None]]:
    url = settings.metadata_url
    metadata: tuple[Cloud, ...] = (Aws(), Gcp(), Azure(settings.azure_vm_name))
    candidates: list[tuple[Cloud, str, ssl.SSLContext | None]] = [
        (cloud, url, None) for cloud in metadata if settings.cloud in (cloud.name, "auto")
    ]
    server = settings.api_server
    if settings.cloud in ("kubernetes", "auto") and settings.node_name and server is not None:
        tls = _trusting(settings.kubernetes_ca_file) if server.startswith("https:") else None
        kubernetes = Kubernetes(
            settings.node_name, settings.node_grace_s, lambda: _read_token(settings.kubernetes_token_file)
        )
        candidates.append((kubernetes, server, tls))
    return candidates


async def _find(candidates: list[tuple[Cloud, HttpClient]], pause_s: float) -> tuple[Cloud, HttpClient] | None:
    for attempt in range(DETECTIONS):
        if attempt:
            await asyncio.sleep(pause_s)
        found = await detect(candidates)
        if found is not None:
            return found
    _log.warning("no_cloud", queried=", ".join(cloud.name for cloud, _ in candidates))
    return None


def _trusting(ca_file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise MeshError(
            f"the API server's certificates cannot be read (SPOTWISE_KUBERNETES_CA_FILE {ca_file}): {error}"
        ) from error


def _read_token(token_file: Path) -> str | None:
    try:
        token = token_file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return token if token and token.isprintable() else None


async def detect(clouds: Sequence[tuple[Cloud, HttpClient]]) -> tuple[Cloud, HttpClient] | None:
    """Return the first cloud that detects this machine, with its client; `None` if no cloud does."""
    found = await asyncio.gather(*(client.converse(cloud.detect()) for cloud, client in clouds))
    return next((each for each, is_here in zip(clouds, found, strict=True) if is_here), None)
