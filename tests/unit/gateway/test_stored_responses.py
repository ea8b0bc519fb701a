"""Responses that are stored: found again by their callers, continued at any gateway, and by no other caller."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import AsyncMock, Mock

import openai
import pytest
from openai import AsyncOpenAI

from spotwise.core.access.store_budget import StoreBudget
from spotwise.gateway.access.auth import ApiKey
from spotwise.mesh.ports.ports import MeshError
from spotwise.text.chat_text import ChatText
from tests.contracts.waiting import until
from tests.fakes.memory import MemoryStore
from tests.unit.gateway.apps import Encode, open_to, openai_of
from tests.unit.gateway.fake_mesh import CHAT, CHATS, MODEL, RESPONSE
from tests.unit.gateway.keeping_mesh import Client, KeepingMesh, keeping_app
from tests.unit.gateway.test_http_tools import FUNCTION, WRITTEN
from tests.unit.gateway.test_resumed_streams import RESPONSE_STREAM, RESPONSES

HI = RESPONSE
FLAT_TOOL: Any = {"type": "function", "strict": None, **FUNCTION}


@pytest.fixture(scope="module")
def text(roomy_text: ChatText) -> ChatText:
    return roomy_text


@pytest.fixture
def mesh(encode: Encode) -> KeepingMesh:
    return KeepingMesh([*encode("Hello, world!"), 2])


@pytest.fixture
def api(mesh: KeepingMesh, text: ChatText) -> AsyncOpenAI:
    return api_of(mesh, text, "mine")


def api_of(mesh: KeepingMesh, text: ChatText, key: str, name: str = "g0") -> AsyncOpenAI:
    """A caller with a key, at a gateway of that name."""
    return openai_of(keeping_app(mesh, text, name, access=open_to((ApiKey("mine"), ApiKey("other")))), key)


def prompts(mesh: KeepingMesh, text: ChatText) -> list[str]:
    return [text.decode(spec.prompt_token_ids, skip_special_tokens=False) for spec in mesh.specs.values()]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_conversation_goes_on(api: AsyncOpenAI, mesh: KeepingMesh, text: ChatText, *, is_stream: bool) -> None:
    """From what was said before, its answer included, without its instructions; at another gateway, and from any answer."""
    if is_stream:
        async with api.responses.stream(**HI, instructions="Be short.") as stream:
            first = await stream.get_final_response()
    else:
        first = await api.responses.create(**HI, instructions="Be short.")
    elsewhere = api_of(mesh, text, "mine", "g1")
    second = await elsewhere.responses.create(model=MODEL, input="And?", previous_response_id=first.id)
    third = await api.responses.create(model=MODEL, input="So?", previous_response_id=second.id, instructions="Shout.")
    assert (second.previous_response_id, third.previous_response_id) == (first.id, second.id)

    def said(*turns: tuple[str, str]) -> str:
        return "".join(f"<|im_start|>{role}\n{words}<|im_end|>\n" for role, words in turns) + "<|im_start|>assistant\n"

    began, answer = ("user", "Hi"), ("assistant", "Hello, world!")
    assert prompts(mesh, text) == [
        said(("system", "Be short."), began),
        said(began, answer, ("user", "And?")),
        said(("system", "Shout."), began, answer, ("user", "And?"), answer, ("user", "So?")),
    ]


async def test_what_was_answered_is_found(api: AsyncOpenAI) -> None:
    """As it was, with the items that it answers; until it is deleted."""
    first = await api.responses.create(**HI)
    second = await api.responses.create(model=MODEL, input="And?", previous_response_id=first.id)
    assert await api.responses.retrieve(second.id) == second
    listed = [item async for item in api.responses.input_items.list(second.id, order="asc")]
    assert [item.type for item in listed] == ["message"] * 3
    texts = [item.model_dump()["content"][0]["text"] for item in listed]
    assert texts == ["Hi", "Hello, world!", "And?"]
    assert len({item.id for item in listed}) == 3
    paged = [item async for item in api.responses.input_items.list(second.id, limit=2)]
    assert paged == listed[::-1]
    await api.responses.delete(second.id)
    for gone in (api.responses.retrieve(second.id), api.responses.delete(second.id)):
        with pytest.raises(openai.NotFoundError) as refusal:
            await gone
        assert refusal.value.code == "response_not_found"
    assert await api.responses.retrieve(first.id) == first


async def test_calls_and_their_outputs(api: AsyncOpenAI, mesh: KeepingMesh, text: ChatText, encode: Encode) -> None:
    mesh.reply = [*encode(WRITTEN), 2]
    first = await api.responses.create(**HI, tools=[FLAT_TOOL])
    (call,) = first.output
    assert call.type == "function_call"
    mesh.specs.clear()
    given: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "wet"}]
    await api.responses.create(model=MODEL, input=given, previous_response_id=first.id, tools=[FLAT_TOOL])
    (prompt,) = prompts(mesh, text)
    assert prompt.index("Hi") < prompt.rindex("weather") < prompt.index("wet")


async def test_nobody_else_finds_it(api: AsyncOpenAI, mesh: KeepingMesh, text: ChatText) -> None:
    """404 for another key, whatever it tries; the owner still has it."""
    mine = await api.responses.create(**HI)
    other = api_of(mesh, text, "other")
    for attempt in (
        other.responses.retrieve(mine.id),
        other.responses.delete(mine.id),
        other.responses.create(**HI, previous_response_id=mine.id),
    ):
        with pytest.raises(openai.NotFoundError) as refusal:
            await attempt
        assert refusal.value.code == "response_not_found"
    assert await api.responses.retrieve(mine.id) == mine


async def test_what_is_not_to_be_stored_is_not(api: AsyncOpenAI) -> None:
    """With `store: false` nothing is written."""
    response = await api.responses.create(**HI, store=False)
    with pytest.raises(openai.NotFoundError):
        await api.responses.retrieve(response.id)


async def test_a_resumed_stream_is_stored_where_it_ends(mesh: KeepingMesh, text: ChatText, encode: Encode) -> None:
    tokens = [*encode("Hello, world!"), 2]
    first = KeepingMesh(tokens, hang_at=3)
    client = Client(keeping_app(first, text), "POST", RESPONSES, RESPONSE_STREAM)
    events = await client.named_events(4)
    second = KeepingMesh(tokens, store=first.store)
    other = keeping_app(second, text, "g1")
    rest = await Client(other, "POST", RESPONSES, RESPONSE_STREAM, {"Last-Event-ID": events[-1].id}).named_events()
    whole = rest[-1].data["response"]
    assert await Client(other, "GET", f"{RESPONSES}/{whole['id']}").answer() == whole
    await client.leave()


async def test_a_stream_of_a_conversation_is_planned_again_without_the_store(text: ChatText, encode: Encode) -> None:
    """What it goes on from is kept with it: it is resumed though that was deleted meanwhile."""
    tokens = [*encode("Hello, world!"), 2]
    mesh = KeepingMesh(tokens)
    app = keeping_app(mesh, text)
    begun = await Client(app, "POST", RESPONSES, HI).answer()
    body = RESPONSE_STREAM | {"previous_response_id": begun["id"]}
    mesh.hang_at = 3
    client = Client(app, "POST", RESPONSES, body)
    events = await client.named_events(4)
    await Client(app, "DELETE", f"{RESPONSES}/{begun['id']}").answer()
    second = KeepingMesh(tokens, store=mesh.store)
    path = f"/v1/requests/{events[0].data['response']['id']}"
    headers = {"Last-Event-ID": events[-1].id, "Accept": "text/event-stream"}
    rest = await Client(keeping_app(second, text, "g1"), "GET", path, None, headers).named_events()
    assert rest[-1].data["type"] == "response.completed"
    await client.leave()


@pytest.mark.parametrize("headers", [{"X-Spotwise-Resumable": "true"}, {"Idempotency-Key": "k"}])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_deleted_response_is_forgotten(
    mesh: KeepingMesh, text: ChatText, headers: dict[str, str], *, is_stream: bool
) -> None:
    """Also what is kept of its request: no gateway has it in any form, and reading or sending it again brings nothing back."""
    app = keeping_app(mesh, text)
    other = keeping_app(KeepingMesh(mesh.reply, store=mesh.store), text, "g1")
    body = HI | {"stream": is_stream}
    began = Client(app, "POST", RESPONSES, body, headers)
    answer = (await began.named_events())[-1].data["response"] if is_stream else await began.answer()
    response_id = answer["id"]
    deleted = await Client(other, "DELETE", f"{RESPONSES}/{response_id}").answer()
    assert (deleted["id"], deleted["deleted"]) == (response_id, True)
    for at in (app, other):
        for path, accept in (
            (f"{RESPONSES}/{response_id}", "application/json"),
            (f"/v1/requests/{response_id}", "application/json"),
            (f"/v1/requests/{response_id}", "text/event-stream"),
        ):
            client = Client(at, "GET", path, None, {"Accept": accept})
            await client.answer()
            assert client.status == 404, path
    again = Client(app, "POST", RESPONSES, HI, headers)
    assert (await again.answer())["id"] != response_id
    assert "idempotent-replayed" not in again.headers
    assert (await mesh.store.responses.get_response(response_id)) is None
    refused = Client(app, "DELETE", f"{RESPONSES}/{response_id}")
    await refused.answer()
    assert refused.status == 404


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("headers", [{"X-Spotwise-Resumable": "true"}, {}])
async def test_a_response_that_is_deleted_while_it_runs_is_not_stored(
    mesh: KeepingMesh, text: ChatText, headers: dict[str, str], *, elsewhere: bool
) -> None:
    app = keeping_app(mesh, text)
    at = keeping_app(KeepingMesh(mesh.reply, store=mesh.store), text, "g1") if elsewhere else app
    mesh.hang_at = 3
    client = Client(app, "POST", RESPONSES, RESPONSE_STREAM, headers)
    response_id = (await client.named_events(4))[0].data["response"]["id"]
    deleted = await Client(at, "DELETE", f"{RESPONSES}/{response_id}").answer()
    assert deleted["deleted"] is True
    if elsewhere:
        await mesh.saver.save_all()  # it learns of it
    rest = await client.named_events()
    assert rest[-1].data["type"] == "response.failed"
    await until(lambda: not mesh.open)
    assert await mesh.store.responses.get_response(response_id) is None
    assert not mesh.store._kept


async def test_only_a_response_is_deleted_as_one(mesh: KeepingMesh, text: ChatText) -> None:
    """Not a request to another endpoint, nor another caller's."""
    app = keeping_app(mesh, text, access=open_to((ApiKey("mine"), ApiKey("other"))))
    resumable = {"X-Spotwise-Resumable": "true", "Authorization": "Bearer mine"}
    chat = await Client(app, "POST", CHATS, CHAT, resumable).answer()
    response = await Client(app, "POST", RESPONSES, HI | {"store": False}, resumable).answer()
    for request_id, key in ((chat["id"], "mine"), (response["id"], "other")):
        refused = Client(app, "DELETE", f"{RESPONSES}/{request_id}", None, {"Authorization": f"Bearer {key}"})
        assert (await refused.answer())["error"]["code"] == "response_not_found"
    assert len(mesh.store._kept) == 2


async def test_without_the_store(mesh: KeepingMesh, text: ChatText) -> None:
    """503 for what needs it; what was computed is answered, and says that it is not stored."""
    away = AsyncMock(side_effect=MeshError("away"))
    mesh.store.responses = Mock(put_response=away, get_response=away, delete_response=away)
    api = api_of(mesh, text, "mine")
    for attempt in (
        api.responses.create(**HI, previous_response_id="resp_1", store=False),
        api.responses.retrieve("resp_1"),
        api.responses.delete("resp_1"),
        anext(aiter(api.responses.input_items.list("resp_1"))),
    ):
        with pytest.raises(openai.InternalServerError) as refusal:
            await attempt
        assert (refusal.value.status_code, refusal.value.code) == (503, "store_unavailable")
    await answered_unstored(mesh, text)
    assert (await api.responses.create(**HI, store=False)).output_text == "Hello, world!"


async def answered_unstored(mesh: KeepingMesh, text: ChatText) -> None:
    """A response and a stream are answered whole, with `"store": false`, and are not found again."""
    app = keeping_app(mesh, text)
    whole = Client(app, "POST", RESPONSES, HI)
    answer = await whole.answer()
    assert (whole.status, whole.headers["x-spotwise-warning"]) == (200, "not stored")
    assert (answer["status"], answer["store"]) == ("completed", False)
    events = await Client(app, "POST", RESPONSES, HI | {"stream": True}).named_events()
    assert events[-1].data["type"] == "response.completed"
    assert (events[0].data["response"]["store"], events[-1].data["response"]["store"]) == (True, False)


async def test_what_is_larger_than_a_share_is_answered_and_not_stored(text: ChatText, encode: Encode) -> None:
    tokens = [*encode("Hello, world!"), 2]
    await answered_unstored(KeepingMesh(tokens, store=MemoryStore(budget=StoreBudget(6000))), text)


async def test_a_conversation_is_no_larger_than_a_body(text: ChatText, encode: Encode) -> None:
    """However it came about: 413, and the words say what to do; the next shorter turn goes on."""
    mesh = KeepingMesh([*encode("Hello, world!"), 2])
    app = keeping_app(mesh, text, max_body_bytes=4096)

    async def say(words: str, previous: str | None) -> tuple[Client, Any]:
        body = {"model": MODEL, "input": words, "previous_response_id": previous, "truncation": "auto"}
        client = Client(app, "POST", RESPONSES, body)
        return client, await client.answer()

    _, first = await say("a " * 1500, None)
    client, refusal = await say("b " * 700, first["id"])
    assert (client.status, refusal["error"]["code"]) == (413, "conversation_too_large")
    assert refusal["error"]["param"] == "previous_response_id"
    client, _ = await say("b", first["id"])
    assert client.status == 200


@pytest.mark.parametrize(
    ("query", "param"), [("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=x", "after")]
)
async def test_a_wrong_page_is_refused(mesh: KeepingMesh, text: ChatText, query: str, param: str) -> None:
    app = keeping_app(mesh, text)
    response = await Client(app, "POST", RESPONSES, HI).answer()
    client = Client(app, "GET", f"{RESPONSES}/{response['id']}/input_items", query=query)
    error = (await client.answer())["error"]
    assert (client.status, error["param"]) == (400, param), json.dumps(error)
