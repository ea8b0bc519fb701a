"""vLLM's client made to say why a request failed, on stand-ins of its parts; `test_vllm_failures.py` has the client itself."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from spotwise.benchmarks.yardsticks.vllm_reasons import (
    StreamError,
    explaining,
    loads,
    of_one_request,
    remembering,
    with_body,
)


class Reader:
    """A reader of streams that takes every piece for a message."""

    def add_chunk(self, chunk_bytes: bytes) -> list[str]:
        return [chunk_bytes.decode()]


def answer(*pieces: str, success: bool = True, tokens: int = 0, error: str = "") -> Any:
    """A request function whose stream has these pieces; what it understands of them is given."""

    async def request(request_func_input: Any, session: object, pbar: object = None) -> SimpleNamespace:
        assert session == "session"
        reader = remembering(Reader)()
        for piece in pieces:
            assert reader.add_chunk(piece.encode()) == [piece]
            if piece.startswith("{"):
                loads(piece)
        return SimpleNamespace(success=success, output_tokens=tokens, prompt_len=8, error=error)

    return explaining(request)


WANTED = SimpleNamespace(output_len=3)


async def test_an_answer_of_the_requested_length_stays_as_it_is() -> None:
    output = await answer('{"choices": []}', tokens=3)(WANTED, "session")
    assert (output.success, output.error, output.prompt_len) == (True, "", 8)


async def test_a_usage_beside_the_last_text_counts() -> None:
    """The client itself reads only one that comes alone."""
    usage = '{"choices": [{"text": ""}], "usage": {"completion_tokens": 3, "prompt_tokens": 9}}'
    output = await answer('{"choices": [{"text": "a"}], "usage": null}', usage)(WANTED, "session")
    assert (output.success, output.output_tokens, output.prompt_len) == (True, 3, 9)
    other = await answer("data", tokens=3)(WANTED, "session")
    assert (other.success, other.prompt_len) == (True, 8), "it is that of the request before"


async def test_an_answer_that_was_cut_is_a_failure() -> None:
    """The client itself takes it for an answer, and counts the tokens of its text."""
    output = await answer("data: {1}")(WANTED, "session")
    assert not output.success
    assert output.error == "0 tokens came back where 3 were requested; the stream began 'data: {1}'"


async def test_a_failure_is_one_line_with_the_beginning_of_its_stream() -> None:
    error = "Traceback (most recent call last):\n  File\nValueError: odd\n"
    output = await answer("x" * 200, "y" * 200, "z", success=False, error=error)(WANTED, "session")
    assert output.error == f"ValueError: odd; the stream began '{'x' * 200}{'y' * 100}'"
    refused = await answer(success=False, error="status 500 Server Error: full")(WANTED, "session")
    assert refused.error == "status 500 Server Error: full", "and nothing of the stream before it"
    assert (await answer(success=False)(WANTED, "session")).error == "no reason"


def test_an_event_that_is_an_error_is_one() -> None:
    with pytest.raises(StreamError, match=r'^the stream has an error: \{"error": \{"message": "worker lost"\}\}$'):
        loads('{"error": {"message": "worker lost"}}')
    assert loads('{"choices": [], "error": null}') == {"choices": [], "error": None}


def test_text_that_is_no_json_is_shown() -> None:
    """The client tells an incomplete event by this exception."""
    with pytest.raises(json.JSONDecodeError, match="in '<html>'"):
        loads("<html>")


@pytest.mark.parametrize("readable", [True, False])
async def test_a_refusal_has_its_status_and_body(readable: bool) -> None:
    async def start(self: Any, connection: object) -> Any:
        return self

    async def read() -> bytes:
        if not readable:
            raise OSError("cut")
        return b'{"error":\n "too long"}' + b"." * 400

    response = SimpleNamespace(status=400, reason="Bad Request", read=read)
    assert await with_body(start)(response, None) is response
    body = '{"error": "too long"}' + "." * 279 if readable else "<no body: OSError('cut')>"
    assert response.reason == f"status 400 Bad Request: {body}"
    fine = SimpleNamespace(status=200, reason="OK", read=None)
    assert (await with_body(start)(fine, None)).reason == "OK"


def test_each_request_has_a_connection_of_its_own() -> None:
    """Whatever the client asks for: a server may close one that is kept alive just as the next request is sent on it."""

    class Connector:
        def __init__(self, **options: object) -> None:
            self.options = options

    connector: Any = of_one_request(Connector)(limit=3, force_close=False, keepalive_timeout=60)
    assert connector.options == {"limit": 3, "force_close": True, "keepalive_timeout": None}
