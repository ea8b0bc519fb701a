"""Answers that are sent after the framework is done with their request.

A stream lasts for minutes, and while a route's response is sent, the framework keeps what it has of the request: nine
coroutines and the request itself, some 5 KiB. So the route's response only leaves the answer behind, and
`LateAnswers` sends it.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

#: Where the answer is in its request's state.
_ANSWER = "late_answer"


class LateAnswer(Response):
    """A response of which nothing is sent by the framework.

    Args:
        answer: sends everything, later.
    """

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Leave the answer behind."""
        scope["state"][_ANSWER] = self._answer


class LateAnswers:
    """Middleware that sends what was left behind; whatever adds a header or turns an error into an answer is round it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; see the ASGI specification."""
        state = scope.setdefault("state", {})
        await self._app({**scope}, receive, send)  # a scope of its own: the framework keeps in it what it needs
        if (answer := state.pop(_ANSWER, None)) is not None:
            await answer(scope, receive, send)
