"""Requests to a server made here: what comes of them, and what its user reads where they fail."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from spotwise.cli.client.gateway_client import GatewayClient, RequestRefusedError, decode_event, failure_of
from spotwise.cli.client.resumable_stream import ResumableStream
from spotwise.cli.errors import CommandError

URL = "http://server"
FULL = {"error": {"message": "the mesh is full"}}


def client_of(answer: httpx.Response | httpx.HTTPError) -> GatewayClient:
    def serve(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, httpx.HTTPError):
            raise answer
        return answer

    return GatewayClient(URL, transport=httpx.MockTransport(serve))


async def stream(client: GatewayClient) -> list[dict[str, Any]]:
    async with client, client.events("/v1/completions", {}) as events:
        return [event async for event in events]


async def models(client: GatewayClient) -> list[str]:
    async with client:
        return await client.models()


async def post(client: GatewayClient) -> dict[str, Any]:
    async with client:
        return await client.post("/v1/completions", {})


async def test_answers_are_whole_or_come_as_events() -> None:
    assert await models(client_of(httpx.Response(200, json={"data": [{"id": "a"}, {"id": "b"}]}))) == ["a", "b"]
    assert await post(client_of(httpx.Response(200, json={"id": "cmpl-7"}))) == {"id": "cmpl-7"}
    lines = b': hello\n\nid: 1.0\ndata: {"choices": []}\n\ndata: {"usage": null}\n\ndata: [DONE]\n\n'
    assert await stream(client_of(httpx.Response(200, content=lines))) == [{"choices": []}, {"usage": None}]


@pytest.mark.parametrize("request_of", [stream, models, post])
async def test_a_refusal_has_the_message_of_the_api_and_its_status(request_of: Any) -> None:
    """Also where the answer would have been a stream."""
    with pytest.raises(
        RequestRefusedError, match=r"^http://server refused .* status 429: the mesh is full$"
    ) as refused:
        await request_of(client_of(httpx.Response(429, json=FULL)))
    assert refused.value.status == 429


@pytest.mark.parametrize("request_of", [stream, models, post])
async def test_a_server_that_does_not_answer_is_named(request_of: Any) -> None:
    with pytest.raises(CommandError, match=r"^nothing answers at http://server \(refused\); start a mesh"):
        await request_of(client_of(httpx.ConnectError("refused")))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (httpx.ReadError(""), r"^http://server broke off \(ReadError\); look at `spotwise status`$"),
        (httpx.ReadTimeout("too late"), r"^http://server broke off \(too late\)"),
        (httpx.ConnectTimeout("no"), r"^nothing answers at"),
        (
            httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED]"),
            r"is not trusted .*--ca FILE, or in SPOTWISE_CA_FILE$",
        ),
    ],
)
def test_a_failure_says_what_to_do(error: httpx.HTTPError, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        raise failure_of(URL, error)


@pytest.mark.parametrize(
    ("status", "content", "message"),
    [
        (401, b'{"error": {"message": "no such key"}}', "401: no such key; set SPOTWISE_API_KEY to a valid key"),
        (502, b"bad gateway", "502: bad gateway"),
        (500, b'{"error": "odd"}', '500: {"error": "odd"}'),
        (500, b"x" * 999, "500: " + "x" * 200),
    ],
)
def test_a_refusal_without_the_api_s_form_shows_the_beginning_of_the_answer(
    status: int, content: bytes, message: str
) -> None:
    assert str(RequestRefusedError(URL, status, content)) == f"http://server refused the request with status {message}"


def test_an_event_that_is_an_error_is_one() -> None:
    with pytest.raises(CommandError, match=r"^a stream failed: worker lost$"):
        decode_event('data: {"error": {"message": "worker lost"}}')
    with pytest.raises(CommandError, match=r"^a stream failed: full$"):
        decode_event('data: {"error": "full"}')
    assert decode_event("data: [DONE]") is decode_event(": a comment") is decode_event("id: 1.2") is None


@pytest.mark.parametrize("data", ["{", "[1]", "<html>" + "x" * 300])
def test_an_event_that_cannot_be_read_is_shown(data: str) -> None:
    with pytest.raises(CommandError, match=rf"^a stream cannot be read \(.+\): '{re.escape(data[:200])}'$"):
        decode_event(f"data: {data}")


async def test_a_stream_that_breaks_off_is_no_answer() -> None:
    async def broken() -> Any:
        yield b'data: {"choices": []}\n\n'
        raise httpx.ReadError("cut")

    with pytest.raises(CommandError, match=r"broke off \(cut\)"):
        await stream(client_of(httpx.Response(200, content=broken())))


def test_a_resumable_stream_names_all_gateways_that_do_not_answer() -> None:
    """Ports that are never bound; and the first one alone where a list of models is requested."""
    urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    http = ResumableStream(urls)
    with pytest.raises(CommandError, match=r"^nothing answers at http://127\.0\.0\.1:1, http://127\.0\.0\.1:2 "):
        list(http.events("/v1/completions", {}))
    with pytest.raises(CommandError, match=r"^nothing answers at http://127\.0\.0\.1:1 "):
        http.models()
    http.close()
