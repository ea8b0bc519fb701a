"""Detects the cloud of this machine; the first match in the given order wins, so that metadata precedes Kubernetes taints."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from spotwise.cloud.dialogue import Cloud
from spotwise.cloud.http_client import HttpClient


async def detect(clouds: Sequence[tuple[Cloud, HttpClient]]) -> tuple[Cloud, HttpClient] | None:
    """Return the first cloud that detects this machine, with its client; `None` if no cloud does."""
    found = await asyncio.gather(*(client.converse(cloud.detect()) for cloud, client in clouds))
    return next((each for each, is_here in zip(clouds, found, strict=True) if is_here), None)
