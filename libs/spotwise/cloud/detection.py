"""Finds out in which cloud a machine is.

Law: all clouds are asked at once, and the first in the given order that knows the machine is it, whoever answered first. A
cloud's own metadata comes before Kubernetes on it, since that says the deadline and a taint does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from spotwise.cloud.dialogue import Cloud
from spotwise.cloud.http_client import HttpClient


async def detect(clouds: Sequence[tuple[Cloud, HttpClient]]) -> tuple[Cloud, HttpClient] | None:
    """Return the cloud of this machine; `None` where none of these knows it."""
    found = await asyncio.gather(*(door.converse(cloud.detect()) for cloud, door in clouds))
    return next((each for each, is_here in zip(clouds, found, strict=True) if is_here), None)
