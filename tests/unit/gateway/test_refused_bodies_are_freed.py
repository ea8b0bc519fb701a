"""Nothing of a refused body remains, and nothing of the framework while an answer is sent.

Pydantic's errors would keep a body in cycles that Python's collector cannot see: a validator's error keeps its traceback, whose
frames keep those of all callers.
"""

from __future__ import annotations

import gc
import weakref
from types import FrameType
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from spotwise.gateway.schema.chat import ChatRequest
from spotwise.gateway.schema.completions import CompletionRequest
from spotwise.gateway.schema.embeddings import EmbeddingRequest
from spotwise.gateway.schema.responses import ResponsesRequest
from spotwise.gateway.schema.shared import parse_request
from spotwise.http.errors import ApiError
from spotwise.http.late_answers import LateAnswer, LateAnswers
from tests.unit.gateway.apps import Http, Json, connect
from tests.unit.gateway.fake_mesh import CHAT, CHATS, COMPLETION, COMPLETIONS, EMBEDDING, MODEL, RESPONSE

MESSAGES = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
BODIES: dict[str, tuple[type[BaseModel], Json]] = {
    CHATS: (ChatRequest, CHAT),
    COMPLETIONS: (CompletionRequest, COMPLETION),
    "/v1/responses": (ResponsesRequest, RESPONSE),
    "/v1/messages": (ChatRequest, MESSAGES),
    "/v1/messages/count_tokens": (ChatRequest, MESSAGES),
    "/v1/embeddings": (EmbeddingRequest, EMBEDDING),
    "/tokenize": (CompletionRequest, COMPLETION),
    "/detokenize": (CompletionRequest, {"tokens": [5]}),
}
WRONG: tuple[Any, ...] = (-1, 10**9, "x" * 5000, "{", [], [{}], [""], {"type": "x"}, {"x": -1e9})


class _Held:
    """What a frame of a caller holds."""


def _refuses(body: Json) -> weakref.ref[_Held]:
    """Refuse a body; return what is there as long as the frame is."""
    held = _Held()
    kept: list[ApiError] = []  # as a future keeps it, which a frame keeps
    try:
        parse_request(CompletionRequest, body)
    except ApiError as error:
        kept.append(error)
    assert kept
    return weakref.ref(held)


def test_an_error_keeps_no_frame() -> None:
    """Not even one that a frame keeps, as soon as cycles are collected."""
    held = _refuses(COMPLETION | {"stop": ["x" * 5000]})
    gc.collect()
    assert held() is None


def _frames() -> int:
    # Not by isinstance: some objects do things when they are asked for their class.
    return sum(type(each) is FrameType for each in gc.get_objects())


@pytest.mark.parametrize("path", BODIES)
async def test_no_wrong_member_keeps_a_frame(client: Http, path: str) -> None:
    kind, body = BODIES[path]
    names = [*kind.model_fields, *body, "prompt", "messages", "tools"]

    async def refused(*wrong: Any) -> int:
        answers = [await client.post(path, json=body | {name: value}) for name in names for value in wrong]
        return sum(answer.status_code >= 400 for answer in answers)

    await refused(None)  # what is kept of any first request
    gc.collect()
    before = _frames()
    assert await refused(*WRONG) > len(WRONG)
    gc.collect()
    assert _frames() < before + 20


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, COMPLETION | {"stop": ["x" * 5000]}),
        (COMPLETIONS, COMPLETION | {"stop": ["x" * 1_000_000]}),
        (COMPLETIONS, COMPLETION | {"prompt": "the fox " * 100_000}),
        (COMPLETIONS, COMPLETION | {"structured_outputs": {"regex": "(a|b"}}),
        (CHATS, CHAT | {"model": "m" * 100_000}),
        ("/v1/messages/count_tokens", MESSAGES | {"messages": [{"role": "user", "content": "the fox " * 50_000}]}),
    ],
)
async def test_a_refused_body_goes_with_its_answer(client: Http, path: str, body: Json) -> None:
    """Without the collector, which looks through what is old after many requests only: wherever the body was understood."""
    await client.post(path, json=body)
    gc.collect()
    gc.disable()
    try:
        before = _frames()
        for _ in range(10):
            assert (await client.post(path, json=body)).status_code >= 400
        assert _frames() < before + 20
    finally:
        gc.enable()


async def test_nothing_of_the_framework_is_there_while_an_answer_is_sent() -> None:
    """What the route was wrapped in has returned; the answer is whole, and what is sent by the framework stays as it was."""
    events: list[str] = []
    kept: list[set[str]] = []

    class Framework:
        def __init__(self, app: ASGIApp) -> None:
            self._app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await self._app(scope, receive, send)
            events.append("framework is done")

    class Answer(Response):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            events.append("answer is sent")
            kept.append(scope.keys() & {"route", "endpoint"})
            await super().__call__(scope, receive, send)

    async def late(request: Request) -> Response:
        return LateAnswer(Answer("told", 201, {"x-kind": "late"}))

    async def at_once(request: Request) -> Response:
        return Answer("told")

    routes = [Route("/late", late), Route("/at-once", at_once)]
    app = Starlette(routes=routes, middleware=[Middleware(LateAnswers), Middleware(Framework)])
    async with connect(app) as client:
        answer = await client.get("/late")
        assert (answer.status_code, answer.text, answer.headers["x-kind"]) == (201, "told", "late")
        assert events == ["framework is done", "answer is sent"]
        assert kept == [set()]
        events.clear()
        assert (await client.get("/at-once")).text == "told"
        assert events == ["answer is sent", "framework is done"]
        assert kept[1:] == [{"route", "endpoint"}]
