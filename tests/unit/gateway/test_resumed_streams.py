"""Streams that go on at another connection or gateway, from any event, and say together what one stream would have said."""

from __future__ import annotations

import asyncio
import json

import pytest

from spotwise.core.gateway.kept_request import process_of
from spotwise.text.chat_text import ChatText
from tests.contracts.waiting import until
from tests.unit.gateway.apps import Encode, Json
from tests.unit.gateway.fake_mesh import CHAT, CHATS, COMPLETION, COMPLETIONS, MODEL
from tests.unit.gateway.keeping_mesh import Client, Event, KeepingMesh, content, keeping_app, request_id_of
from tests.unit.gateway.test_http_tools import FUNCTION, WRITTEN

STREAM = {"stream": True, "stream_options": {"include_usage": True}}
RESUMABLE = {"X-Spotwise-Resumable": "true"}

#: Endpoints and bodies with all that an event may hold.
BODIES: dict[str, tuple[str, Json]] = {
    "chat": (CHATS, CHAT | STREAM),
    "two choices with scores and a stop string": (
        CHATS,
        CHAT | STREAM | {"n": 2, "logprobs": True, "top_logprobs": 2, "stop": ["wor", "zz"], "return_token_ids": True},
    ),
    "text held back": (CHATS, CHAT | STREAM | {"stop": ["world!?"]}),
    "completion": (COMPLETIONS, COMPLETION | STREAM),
    "echo with scores": (COMPLETIONS, COMPLETION | STREAM | {"echo": True, "logprobs": 1}),
    "scores of the prompt alone": (COMPLETIONS, COMPLETION | STREAM | {"echo": True, "logprobs": 1, "max_tokens": 0}),
    "two prompts": (COMPLETIONS, COMPLETION | STREAM | {"prompt": ["Hi", "Ho"]}),
}


@pytest.fixture
def tokens(encode: Encode) -> list[int]:
    """A text whose characters take several tokens each, and the end of the sequence."""
    return [*encode("Hello 😀, world! 你好"), 2]


@pytest.mark.parametrize("name", BODIES)
async def test_any_event_is_a_place_to_go_on_from(name: str, text: ChatText, tokens: list[int]) -> None:
    """After the end, from each event's id: the rest, and nothing of what came before."""
    path, body = BODIES[name]
    mesh = KeepingMesh(tokens)
    app = keeping_app(mesh, text)
    events = await Client(app, "POST", path, body, RESUMABLE).events()
    whole = content(events)
    places = [number for number, event in enumerate(events) if event.id]
    assert len(places) >= len(events) - 3
    for number in places:
        client = Client(app, "POST", path, body, {"Last-Event-ID": events[number].id})
        rest = await client.events()
        assert client.status == 200
        assert content([*events[: number + 1], *rest]) == whole, f"from event {number}"


@pytest.mark.parametrize(
    "name", ["chat", "two choices with scores and a stop string", "completion", "echo with scores"]
)
@pytest.mark.parametrize("had", [1, 3, 5])
async def test_another_gateway_goes_on(name: str, had: int, text: ChatText, tokens: list[int]) -> None:
    """The gateway dies in the midst; some of what it sent was not saved. Its client has the answer as if nothing had been."""
    path, body = BODIES[name]
    undisturbed = content(
        await Client(keeping_app(KeepingMesh(tokens), text), "POST", path, body | {"seed": 1}).events()
    )
    first = KeepingMesh(tokens, hang_at=5)
    client = Client(keeping_app(first, text), "POST", path, body | {"seed": 1})
    events = [await client.event() for _ in range(had)]
    if had > 3:
        await first.saver.save_all()
    other = keeping_app(KeepingMesh(tokens, store=first.store), text, "g1")
    rest = await Client(other, "POST", path, body | {"seed": 1}, {"Last-Event-ID": events[-1].id}).events()
    assert content([*events, *rest])[:2] == undisturbed[:2]
    assert content([*events, *rest])[2] == {request_id_of(events)}
    await client.leave()


async def test_the_loser_is_told_and_ends(text: ChatText, tokens: list[int]) -> None:
    """A gateway that only stood still finds at its next save that it has lost the stream: its client is told where it went."""
    first = KeepingMesh(tokens, hang_at=3)
    client = Client(keeping_app(first, text), "POST", CHATS, CHAT | STREAM)
    events = [await client.event() for _ in range(3)]
    second = KeepingMesh(tokens, store=first.store)
    rest = await Client(
        keeping_app(second, text, "g1"), "POST", CHATS, CHAT | STREAM, {"Last-Event-ID": events[-1].id}
    ).events()
    assert content(rest)[1][-1] == "[DONE]"
    await first.saver.save_all()
    told = await client.events()
    assert [event.data["error"]["code"] for event in told if event.data and "error" in event.data] == [
        "resumed_elsewhere"
    ]
    await asyncio.wait_for(client.task, 10)
    kept = await first.store.get_request(request_id_of(events))
    assert kept is not None
    assert process_of(kept.owner) == "g1"
    assert kept.ending is not None
    assert kept.ending.state == "finished"


async def test_two_gateways_at_once_have_one_winner(text: ChatText, tokens: list[int]) -> None:
    """A client that reconnects twice: one connection has the rest, the other is told."""
    first = KeepingMesh(tokens, hang_at=3)
    client = Client(keeping_app(first, text), "POST", CHATS, CHAT | STREAM)
    events = [await client.event() for _ in range(3)]
    meshes = [KeepingMesh(tokens, store=first.store, hang_at=6) for _ in range(2)]
    rivals = [
        Client(keeping_app(mesh, text, f"g{number}"), "POST", CHATS, CHAT | STREAM, {"Last-Event-ID": events[-1].id})
        for number, mesh in enumerate(meshes, 1)
    ]
    for mesh in meshes:
        await asyncio.wait_for(mesh.hung.get(), 10)
    for mesh in meshes:
        await mesh.saver.save_all()
        mesh.go.set()
    ends = [content(await rival.events())[1] for rival in rivals]
    losers = [end for end in ends if isinstance(end[0], dict) and end[0].get("code") == "resumed_elsewhere"]
    assert len(losers) == 1
    await client.leave()


async def test_a_half_open_connection_is_replaced_at_its_own_gateway(text: ChatText, tokens: list[int]) -> None:
    """The gateway has not noticed that the client is gone: the new connection goes on, the old one is told."""
    mesh = KeepingMesh(tokens, hang_at=3)
    app = keeping_app(mesh, text)
    client = Client(app, "POST", CHATS, CHAT | STREAM)
    events = [await client.event() for _ in range(3)]
    again = Client(app, "POST", CHATS, CHAT | STREAM, {"Last-Event-ID": events[-1].id})
    await until(lambda: bool(mesh.resumed))
    mesh.go.set()
    rest = await again.events()
    whole = await Client(keeping_app(KeepingMesh(tokens), text), "POST", CHATS, CHAT | STREAM).events()
    assert content([*events, *rest])[:2] == content(whole)[:2]
    assert content(await client.events())[1][0]["code"] == "resumed_elsewhere"


async def test_a_resumable_request_goes_on_without_its_client(text: ChatText, tokens: list[int]) -> None:
    """Its connection breaks, and it ends meanwhile; the rest is there, at any gateway."""
    mesh = KeepingMesh(tokens, hang_at=3)
    app = keeping_app(mesh, text)
    client = Client(app, "POST", CHATS, CHAT | STREAM, RESUMABLE)
    events = [await client.event() for _ in range(3)]
    await client.leave()
    assert mesh.open
    mesh.go.set()
    await until(lambda: not mesh.open)
    other = keeping_app(KeepingMesh(tokens, store=mesh.store), text, "g1")
    path = f"/v1/requests/{request_id_of(events)}"
    for at in (app, other):
        headers = {"Last-Event-ID": events[-1].id, "Accept": "text/event-stream"}
        rest = await Client(at, "GET", path, None, headers).events()
        whole = await Client(keeping_app(KeepingMesh(tokens), text), "POST", CHATS, CHAT | STREAM).events()
        assert content([*events, *rest])[:2] == content(whole)[:2]


async def test_a_resumable_request_waits_so_long_and_no_longer(text: ChatText, tokens: list[int]) -> None:
    """Without its client for the time set it is cancelled, and says so."""
    mesh = KeepingMesh(tokens, hang_at=3)
    app = keeping_app(mesh, text, resume_s=0.05)
    client = Client(app, "POST", CHATS, CHAT | STREAM, RESUMABLE)
    event = await client.event()
    await client.leave()
    await until(lambda: not mesh.open)
    request_id = event.data["id"]
    await until(lambda: mesh.store._kept[request_id].ending is not None)
    state = await Client(app, "GET", f"/v1/requests/{event.data['id']}").answer()
    assert state["state"] == "cancelled"
    again = Client(app, "POST", CHATS, CHAT | STREAM, {"Last-Event-ID": event.id})
    assert (await again.answer())["error"]["code"] == "cancelled"
    assert again.status == 409


async def test_other_streams_end_with_their_client(text: ChatText, tokens: list[int]) -> None:
    """As ever: a client that leaves cancels its work at once."""
    mesh = KeepingMesh(tokens, hang_at=3)
    client = Client(keeping_app(mesh, text), "POST", CHATS, CHAT | STREAM)
    await client.event()
    await client.leave()
    assert not mesh.open


async def test_another_answer_is_an_honest_error(text: ChatText, tokens: list[int], encode: Encode) -> None:
    """Tokens that are computed again differ (the mesh serves other weights now): the client is told, and gets none of them."""
    first = KeepingMesh(tokens, hang_at=4)
    client = Client(keeping_app(first, text), "POST", CHATS, CHAT | STREAM)
    events = [await client.event() for _ in range(4)]
    second = KeepingMesh([*encode("Good bye, world"), 2], store=first.store)
    rest = await Client(
        keeping_app(second, text, "g1"), "POST", CHATS, CHAT | STREAM, {"Last-Event-ID": events[-1].id}
    ).events()
    choices, (error, done), _ = content(rest)
    assert (choices, error["code"], done) == ([], "diverged", "[DONE]")
    await client.leave()


@pytest.mark.parametrize(
    "event_id", ["x", "chatcmpl-1.", "chatcmpl-1.1-zz", "chatcmpl-1.1-ff.v", "a b.1-ff", "chatcmpl-1." + "1-1_" * 5000]
)
async def test_ids_of_no_event_are_refused(text: ChatText, event_id: str) -> None:
    """400, whatever it is; an id of no request is a 404."""
    app = keeping_app(KeepingMesh([2]), text)
    client = Client(app, "POST", CHATS, CHAT | STREAM, {"Last-Event-ID": event_id})
    assert (await client.answer())["error"]["code"] == "invalid_event_id"
    assert client.status == 400
    client = Client(app, "POST", CHATS, CHAT | STREAM, {"Last-Event-ID": "chatcmpl-1.1-ff"})
    assert (await client.answer())["error"]["code"] == "request_not_found"
    assert client.status == 404


RESPONSES = "/v1/responses"
RESPONSE_STREAM: Json = {"model": MODEL, "input": "Hi", "stream": True, "seed": 1}
RESPONSE_BODIES: dict[str, tuple[Json, str]] = {
    "text": (RESPONSE_STREAM, "Hello 😀, world! 你好"),
    "stop string that is held back": (RESPONSE_STREAM | {"stop": ["dog", "zz"]}, "the lazy 😀 fox jumps over the dog"),
    "calls": (
        RESPONSE_STREAM | {"tools": [{"type": "function", **FUNCTION}], "include": ["message.output_text.logprobs"]},
        f"So 😀: {WRITTEN}\n{WRITTEN} done",
    ),
}


@pytest.fixture(scope="module")
def text(roomy_text: ChatText) -> ChatText:
    return roomy_text


def told(events: list[Event]) -> list[Json]:
    """What events say, but for the response's id and time."""
    ids = {event.data["response"]["id"] for event in events if "response" in event.data}
    (request_id,) = ids
    written = json.dumps([event.data for event in events]).replace(request_id, "resp")
    said: list[Json] = json.loads(written)
    for each in said:
        for name in ("item_id", "id", "call_id"):
            each.pop(name, None)
        for item in (each.get("item"), *each.get("response", {}).get("output", ())):
            for name in ("id", "call_id"):
                (item or {}).pop(name, None)
        each.get("response", {}).pop("created_at", None)
    return said


@pytest.mark.parametrize("name", RESPONSE_BODIES)
async def test_any_event_of_a_response_is_a_place_to_go_on_from(name: str, text: ChatText, encode: Encode) -> None:
    """Every event has an id; after the end, from each: exactly the events after it."""
    body, said = RESPONSE_BODIES[name]
    app = keeping_app(KeepingMesh([*encode(said), 2]), text)
    events = await Client(app, "POST", RESPONSES, body, RESUMABLE).named_events()
    assert [event.data["sequence_number"] for event in events] == list(range(len(events)))
    assert len({event.id for event in events}) == len(events)
    for number, event in enumerate(events):
        rest = await Client(app, "POST", RESPONSES, body, {"Last-Event-ID": event.id}).named_events()
        assert rest == events[number + 1 :], f"from event {number}"


@pytest.mark.parametrize("had", [1, 2, 3, 5, 6, 9])
@pytest.mark.parametrize("name", RESPONSE_BODIES)
async def test_another_gateway_goes_on_with_a_response(name: str, had: int, text: ChatText, encode: Encode) -> None:
    """The gateway dies in the midst; together its client has what one gateway would have sent."""
    body, said = RESPONSE_BODIES[name]
    tokens = [*encode(said), 2]
    undisturbed = await Client(keeping_app(KeepingMesh(tokens), text), "POST", RESPONSES, body).named_events()
    first = KeepingMesh(tokens, hang_at=len(tokens) - 1)
    client = Client(keeping_app(first, text), "POST", RESPONSES, body)
    events = await client.named_events(had)
    if had > 4:
        await first.saver.save_all()
    second = KeepingMesh(tokens, store=first.store)
    headers = {"Last-Event-ID": events[-1].id}
    rest = await Client(keeping_app(second, text, "g1"), "POST", RESPONSES, body, headers).named_events()
    assert told([*events, *rest]) == told(undisturbed)
    begun = [event.data["item"]["id"] for event in [*events, *rest] if event.data["type"].endswith("item.added")]
    assert begun == [item["id"] for item in rest[-1].data["response"]["output"]]
    await client.leave()
