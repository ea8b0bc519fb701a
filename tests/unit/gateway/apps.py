"""APIs over a mesh in memory, and clients of them within the process."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import httpx2
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from spotwise.core.access.quotas import KeyLimit
from spotwise.gateway.access.api_access import ApiAccess
from spotwise.gateway.access.auth import ApiKey
from spotwise.gateway.access.known_keys import KnownKeys
from spotwise.gateway.access.quotas import Quotas
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.routes.app import create_app
from spotwise.mesh.process.clock import SystemClock
from spotwise.text.chat_text import ChatText
from tests.unit.gateway.fake_mesh import MODEL, FakeMesh

#: A client of an API, and an object of JSON.
Http: TypeAlias = httpx.AsyncClient
Json: TypeAlias = dict[str, Any]
MakeApp: TypeAlias = Callable[..., Starlette]
Encode: TypeAlias = Callable[[str], list[int]]
#: Whether a grammar allows a text.
Fits: TypeAlias = Callable[[str, str], bool]


def open_to(api_keys: Iterable[ApiKey] = ()) -> ApiAccess:
    """Return the access of a gateway with these keys and without a store."""
    clock = SystemClock()
    return ApiAccess(KnownKeys(api_keys, clock), Quotas(None, clock, "gateway-0", _ignore))


def _ignore(_limit: KeyLimit) -> None:
    pass


def app_over(
    mesh: FakeMesh,
    text: ChatText,
    registry: CollectorRegistry | None = None,
    access: ApiAccess | None = None,
    now: Callable[[], float] = time.time,
    **options: Any,
) -> Starlette:
    """Return the API over a mesh; `options`: of its `ApiOptions`."""
    metrics = GatewayMetrics(registry or CollectorRegistry(), MODEL)
    return create_app(mesh, text, ApiOptions(MODEL, **options), metrics, access or open_to(), now=now)


def connect(app: Starlette, **headers: str) -> httpx.AsyncClient:
    """Return a client of an app, which is a context manager."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway", headers=headers)


def openai_of(app: Starlette, key: str = "none", max_retries: int = 0) -> AsyncOpenAI:
    """Return OpenAI's own client of an app."""
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
    return AsyncOpenAI(api_key=key, base_url="http://gateway/v1", http_client=http, max_retries=max_retries)


def with_template(model_dir: Path, folder: Path, template: str) -> ChatText:
    """Return the text of a model's copy, in a folder that is not there yet, with another chat template."""
    shutil.copytree(model_dir, folder)
    (folder / "chat_template.jinja").write_text(template)
    return ChatText.load(folder)


def data_of(stream: str) -> list[dict[str, Any]]:
    """Return what the events of a stream say, but for `[DONE]`."""
    return [json.loads(line[6:]) for line in stream.split("\n") if line.startswith("data: {")]


def metric(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """Return the value of one of the gateway's metrics."""
    return registry.get_sample_value(name, {"model_name": MODEL, **labels})
