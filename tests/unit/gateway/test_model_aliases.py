"""Further names of the model and its adapters: requests give them, answers repeat them, lists show them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from starlette.applications import Starlette

from spotwise.core.requests.names import AdapterRef
from spotwise.gateway.settings import GatewaySettings
from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, EMBEDDING, EMBEDDINGS, MODEL, RESPONSE, FakeMesh

LAW = AdapterRef("law", "d1")
ALIASES = {"gpt-4o": MODEL, "claude-law": "law"}
MakeApp = Callable[..., Starlette]


def connect(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", COMPLETION),
        ("/v1/responses", RESPONSE),
        ("/v1/messages", {**CHAT, "max_tokens": 4}),
        ("/v1/embeddings", EMBEDDING),
    ],
)
async def test_an_answer_has_the_name_that_its_request_gave(make_app: MakeApp, path: str, body: dict[str, Any]) -> None:
    async with connect(make_app(aliases=ALIASES, embeddings=EMBEDDINGS)) as client:
        for name in (MODEL, "gpt-4o"):
            response = await client.post(path, json=body | {"model": name})
            assert response.status_code == 200, response.text
            assert response.json()["model"] == name
        unknown = await client.post(path, json=body | {"model": "gpt-5"})
    assert unknown.status_code == 404
    assert "'gpt-4o'" in unknown.json()["error"]["message"]


async def test_an_alias_of_an_adapter_is_computed_with_it(make_app: MakeApp, mesh: FakeMesh) -> None:
    async with connect(make_app(aliases=ALIASES, adapters=(LAW,))) as client:
        answered = await client.post("/v1/completions", json=COMPLETION | {"model": "claude-law"})
    assert answered.json()["model"] == "claude-law"
    assert mesh.spec.adapter == LAW


async def test_any_name_stands_for_the_model_where_that_is_said(make_app: MakeApp, mesh: FakeMesh) -> None:
    """Known names stay what they are; the list has no `*`, but asking for a name finds it."""
    aliases = {"*": MODEL, "claude-law": "law"}
    async with connect(make_app(aliases=aliases, adapters=(LAW,))) as client:
        for name, adapter in (("whatever/it is", None), ("law", LAW), ("claude-law", LAW), ("*", None)):
            mesh.specs.clear()
            answered = await client.post("/v1/completions", json=COMPLETION | {"model": name})
            assert answered.json()["model"] == name
            assert mesh.spec.adapter == adapter
        listed = (await client.get("/v1/models")).json()["data"]
        found = (await client.get("/v1/models/claude-3")).json()
    assert [card["id"] for card in listed] == [MODEL, "law", "claude-law"]
    assert (found["id"], found["root"]) == ("claude-3", MODEL)


async def test_the_list_has_aliases_as_vllms_has_several_names(make_app: MakeApp) -> None:
    async with connect(make_app(aliases=ALIASES, adapters=(LAW,))) as client:
        cards = (await client.get("/v1/models")).json()["data"]
        assert (await client.get("/v1/models/gpt-5")).status_code == 404
    shown = [(card["id"], card["root"], card["parent"]) for card in cards]
    assert shown == [
        (MODEL, MODEL, None),
        ("law", "law", MODEL),
        ("gpt-4o", MODEL, None),
        ("claude-law", "law", MODEL),
    ]


@pytest.mark.parametrize("wrong", ["gpt-4o", "=m", "a=", "a b=m", "a=m,a=n"])
def test_a_wrong_list_of_aliases_is_a_wrong_setting(wrong: str, model_dir: Path) -> None:
    with pytest.raises(ValidationError, match="alias"):
        GatewaySettings(model_dir=model_dir, model_aliases=wrong)
