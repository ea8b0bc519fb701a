"""Answers are sent after the framework is done with their request."""

from __future__ import annotations

import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from spotwise.http.late_answers import LateAnswer, LateAnswers


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
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        answer = await client.get("/late")
        assert (answer.status_code, answer.text, answer.headers["x-kind"]) == (201, "told", "late")
        assert events == ["framework is done", "answer is sent"]
        assert kept == [set()]
        events.clear()
        assert (await client.get("/at-once")).text == "told"
        assert events == ["answer is sent", "framework is done"]
        assert kept[1:] == [{"route", "endpoint"}]
