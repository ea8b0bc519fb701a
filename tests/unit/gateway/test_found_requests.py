"""`Idempotency-Key` and `/v1/requests/{id}`: the same request is found again, by its caller only."""

from __future__ import annotations

import asyncio

import pytest

from spotwise.gateway.access.auth import parse_api_keys
from spotwise.http.errors import GenerationError
from spotwise.text.chat_text import ChatText
from tests.contracts.waiting import until
from tests.unit.gateway.apps import Encode, Json, open_to
from tests.unit.gateway.fake_mesh import CHAT, CHATS, COMPLETION, COMPLETIONS
from tests.unit.gateway.keeping_mesh import Client, KeepingMesh, content, keeping_app

KEY = {"Idempotency-Key": "order-7"}
KEYS = parse_api_keys("acme:alpha,other:beta,gamma,delta")


@pytest.fixture
def tokens(encode: Encode) -> list[int]:
    return [*encode("Hello, world!"), 2]


def by(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def has_ended(mesh: KeepingMesh, request_id: str) -> None:
    """Wait until the store has a request's ending."""
    await until(lambda: mesh.store._kept[request_id].ending is not None)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_key_gets_the_same_answer(stream: bool, text: ChatText, tokens: list[int]) -> None:
    """At any gateway, however its fields are ordered; the mesh generates once. Without a seed a second run would differ."""
    mesh = KeepingMesh(tokens)
    apps = [keeping_app(mesh, text), keeping_app(KeepingMesh([5, 2], store=mesh.store), text, "g1")]
    body = CHAT | {"stream": stream}
    answers = []
    for app, each in ((apps[0], body), (apps[0], dict(reversed(body.items()))), (apps[1], body)):
        client = Client(app, "POST", CHATS, each, KEY)
        answers.append(content(await client.events()) if stream else await client.answer())
        assert client.status == 200
        await asyncio.wait_for(client.task, 10)
        await until(lambda: all(kept.ending is not None for kept in mesh.store._kept.values()))
    assert answers[0] == answers[1] == answers[2]
    assert client.headers["idempotent-replayed"] == "true"
    assert len(mesh.specs) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_key_joins_a_running_request(stream: bool, text: ChatText, tokens: list[int]) -> None:
    """The repeat of a request that has not ended waits for the same answer; a stream begins at its start."""
    mesh = KeepingMesh(tokens, hang_at=2)
    app = keeping_app(mesh, text)
    clients = [Client(app, "POST", CHATS, CHAT | {"stream": stream}, KEY)]
    await asyncio.wait_for(mesh.hung.get(), 10)
    clients.append(Client(app, "POST", CHATS, CHAT | {"stream": stream}, KEY))
    await asyncio.sleep(0.05)
    mesh.go.set()
    answers = [content(await each.events()) if stream else await each.answer() for each in clients]
    assert answers[0] == answers[1]
    assert len(mesh.specs) == 1


async def test_another_body_under_the_key_is_refused(text: ChatText, tokens: list[int]) -> None:
    """422, also of the other endpoint; the first answer stays."""
    app = keeping_app(KeepingMesh(tokens), text)
    first = await Client(app, "POST", CHATS, CHAT, KEY).answer()
    for path, body in ((CHATS, CHAT | {"max_tokens": 3}), (COMPLETIONS, COMPLETION)):
        client = Client(app, "POST", path, body, KEY)
        assert (await client.answer())["error"]["code"] == "idempotency_mismatch"
        assert client.status == 422
    assert await Client(app, "POST", CHATS, CHAT, KEY).answer() == first


async def test_a_refused_request_is_tried_again(text: ChatText, tokens: list[int]) -> None:
    """A full mesh is no answer to keep: the retry with the key is served."""
    mesh = KeepingMesh(tokens, fail_at=-1, error=GenerationError(429, "mesh_full", "All workers are full.", 1.0))
    app = keeping_app(mesh, text)
    client = Client(app, "POST", CHATS, CHAT, KEY)
    assert (await client.answer())["error"]["code"] == "mesh_full"
    assert client.status == 429
    await asyncio.wait_for(client.task, 10)
    mesh.fail_at = None
    for _ in range(100):
        client = Client(app, "POST", CHATS, CHAT, KEY)
        answer = await client.answer()
        if client.status == 200:
            break
        await asyncio.sleep(0.01)
    assert answer["choices"][0]["message"]["content"] == "Hello, world!"


@pytest.mark.parametrize("key", ["x" * 256, "two words"])
async def test_odd_keys_are_refused(text: ChatText, key: str) -> None:
    client = Client(keeping_app(KeepingMesh([2]), text), "POST", CHATS, CHAT, {"Idempotency-Key": key})
    assert (await client.answer())["error"]["code"] == "invalid_idempotency_key"


async def test_a_request_is_its_callers_own(text: ChatText, tokens: list[int]) -> None:
    """Another key finds neither the request nor what it holds, and cannot cancel it: the answer is that for no request at all.
    The same `Idempotency-Key` of another caller is another request. Keys without names are apart, too.
    """
    mesh = KeepingMesh(tokens)
    app = keeping_app(mesh, text, access=open_to(KEYS))
    for own, other in (("alpha", "beta"), ("gamma", "delta")):
        client = Client(app, "POST", CHATS, CHAT | {"stream": True}, KEY | by(own))
        events = await client.events()
        await asyncio.wait_for(client.task, 10)
        path = f"/v1/requests/{events[0].data['id']}"
        await has_ended(mesh, path[13:])
        assert (await Client(app, "GET", path, None, by(own)).answer())["state"] == "finished"
        unknown = await Client(app, "GET", path[:-1] + "x", None, by(other)).answer()
        for method, headers in (("GET", {}), ("GET", {"Accept": "text/event-stream"}), ("DELETE", {})):
            client = Client(app, method, path, None, by(other) | headers)
            message = str(await client.answer())
            assert client.status == 404
            assert message.replace(path[13:], "") == str(unknown).replace(path[13:-1] + "x", "")
        client = Client(app, "POST", CHATS, CHAT | {"stream": True}, by(other) | {"Last-Event-ID": events[0].id})
        assert (await client.answer())["error"]["code"] == "request_not_found"
        theirs = await Client(app, "POST", CHATS, CHAT | {"stream": True}, KEY | by(other)).events()
        assert theirs[0].data["id"] != events[0].data["id"]
    client = Client(app, "GET", path)
    await client.answer()
    assert client.status == 401


async def test_the_state_of_a_request(text: ChatText, tokens: list[int]) -> None:
    """While it runs and when it has ended, with the answer then; the same at any gateway."""
    mesh = KeepingMesh(tokens, hang_at=2)
    app, other = keeping_app(mesh, text), keeping_app(KeepingMesh(tokens, store=mesh.store), text, "g1")
    asking = Client(app, "POST", CHATS, CHAT | {"n": 2}, KEY)
    for _ in range(2):
        await asyncio.wait_for(mesh.hung.get(), 10)
    request_id = next(iter(mesh.specs)).partition("#")[0]
    state: Json = await Client(app, "GET", f"/v1/requests/{request_id}").answer()
    assert (state["id"], state["state"], state["resumable"], state["response"]) == (request_id, "decoding", True, None)
    assert [(choice["index"], choice["output_tokens"], choice["finish_reason"]) for choice in state["choices"]] == [
        (0, 2, None),
        (1, 2, None),
    ]
    mesh.go.set()
    answer = await asking.answer()
    await until(lambda: mesh.store._kept[request_id].ending is not None)
    for at in (app, other):
        state = await Client(at, "GET", f"/v1/requests/{request_id}").answer()
        assert (state["state"], state["created"]) == ("finished", answer["created"])
        assert [choice["finish_reason"] for choice in state["choices"]] == ["stop", "stop"]
        assert state["response"] == answer


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("resumable", [False, True])
async def test_a_request_is_cancelled_at_any_gateway(
    resumable: bool, elsewhere: bool, text: ChatText, tokens: list[int]
) -> None:
    """Its owner ends it at once, or at its next save where it is another gateway; its client is told."""
    mesh = KeepingMesh(tokens, hang_at=2)
    app = keeping_app(mesh, text)
    at = keeping_app(KeepingMesh(tokens, store=mesh.store), text, "g1") if elsewhere else app
    headers = {"X-Spotwise-Resumable": "true"} if resumable else {}
    client = Client(app, "POST", CHATS, CHAT | {"stream": True}, headers)
    event = await client.event()
    cancelled = await Client(at, "DELETE", f"/v1/requests/{event.data['id']}").answer()
    assert cancelled["state"] == "cancelled"
    await mesh.saver.save_all()
    errors = [each.data["error"]["code"] for each in await client.events() if each.data and "error" in each.data]
    assert errors == ["cancelled"]
    await until(lambda: not mesh.open)
    state = await Client(at, "GET", f"/v1/requests/{event.data['id']}").answer()
    assert state["state"] == "cancelled"


async def test_a_request_that_none_could_find_again_is_not_kept(text: ChatText, tokens: list[int]) -> None:
    """A plain request without a key costs the store nothing."""
    mesh = KeepingMesh(tokens)
    await Client(keeping_app(mesh, text), "POST", CHATS, CHAT).answer()
    assert mesh.store._kept == {}
