"""vLLM's command line, whose benchmark client says why a request failed, and reads every server alike.

`python vllm_reasons.py bench serve …` is run by the Python of vLLM's environment, and imports nothing of spotwise. vLLM 0.32's
client keeps only the reason phrase of a refused request, shows nothing of a stream that it cannot read, skips an event that is
an error, and takes a stream that was cut for an answer. It overlooks a usage that comes with the last text, as llama.cpp's,
and then counts the tokens of the text. Each request has a connection of its own. Requests, reading and times are its own.
"""

from __future__ import annotations

import contextvars
import importlib
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

SHOWN_CHARACTERS = 300

Request = Callable[..., Awaitable[Any]]


class StreamError(RuntimeError):
    """A stream has an event that is an error."""


@dataclass
class AnswerStream:
    """The beginning of a request's stream, and the usage that it brought."""

    begun: str = ""
    usage: dict[str, int] | None = None


_stream: contextvars.ContextVar[AnswerStream] = contextvars.ContextVar("stream")


def loads(text: str) -> Any:
    """As `json.loads`; keeps the usage of an event, raises `StreamError` for an error, and shows text that is no JSON."""
    try:
        event = json.loads(text)
    except json.JSONDecodeError as error:
        raise json.JSONDecodeError(f"{error.msg} in {text[:SHOWN_CHARACTERS]!r}", text, error.pos) from None
    if isinstance(event, dict):
        if event.get("error"):
            raise StreamError(f"the stream has an error: {text[:SHOWN_CHARACTERS]}")
        if event.get("usage") and (stream := _stream.get(None)) is not None:
            stream.usage = event["usage"]
    return event


def remembering(handler: type[Any]) -> type[Any]:
    """A subclass of the client's reader of streams that keeps the beginning of each request's stream."""

    class Remembering(handler):  # type: ignore[misc]
        def add_chunk(self, chunk_bytes: bytes) -> list[str]:
            stream = _stream.get()
            if len(stream.begun) < SHOWN_CHARACTERS:
                stream.begun += chunk_bytes.decode(errors="replace")
            messages: list[str] = super().add_chunk(chunk_bytes)
            return messages

    return Remembering


def explaining(request: Request) -> Request:
    """The client's request function; each failure has one line: its exception or status, and how the stream began.

    An answer with another number of tokens than requested, by its usage, is a failure.
    """

    async def explained(request_func_input: Any, *args: Any, **kwargs: Any) -> Any:
        stream = AnswerStream()
        _stream.set(stream)
        output = await request(request_func_input, *args, **kwargs)
        if stream.usage is not None:
            output.output_tokens = stream.usage.get("completion_tokens", 0)
            output.prompt_len = stream.usage.get("prompt_tokens", output.prompt_len)
        expected, brought = request_func_input.output_len, output.output_tokens
        if output.success and brought != expected:
            output.success = False
            output.error = f"{brought} tokens came back where {expected} were requested"
        if not output.success:
            line = next(reversed(output.error.strip().splitlines()), "no reason")
            shown = stream.begun[:SHOWN_CHARACTERS]
            output.error = f"{line}; the stream began {shown!r}" if shown else line
        return output

    return explained


def with_body(start: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`aiohttp.ClientResponse.start`; the reason of a refusal is its status and the beginning of its body."""

    async def started(self: Any, connection: Any) -> Any:
        response = await start(self, connection)
        if self.status != 200:
            try:
                body = (await self.read()).decode(errors="replace")
            except Exception as error:
                body = f"<no body: {error!r}>"
            self.reason = f"status {self.status} {self.reason}: {' '.join(body.split())[:SHOWN_CHARACTERS]}"
        return response

    return started


def of_one_request(connector: type[Any]) -> type[Any]:
    """A subclass of `aiohttp.TCPConnector` whose connections carry one request each.

    A server may close a connection that it keeps alive at the very moment in which the client sends the next request on it.
    """

    class OfOneRequest(connector):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**{**options, "force_close": True, "keepalive_timeout": None})

    return OfOneRequest


def main() -> int:
    """Run vLLM's command line on this process's arguments, with the client's requests explained."""
    aiohttp: Any = importlib.import_module("aiohttp")
    client: Any = importlib.import_module("vllm.benchmarks.lib.endpoint_request_func")
    aiohttp.ClientResponse.start = with_body(aiohttp.ClientResponse.start)
    aiohttp.TCPConnector = of_one_request(aiohttp.TCPConnector)
    client.json = SimpleNamespace(loads=loads, dumps=json.dumps, JSONDecodeError=json.JSONDecodeError)
    client.StreamedResponseHandler = remembering(client.StreamedResponseHandler)
    client.ASYNC_REQUEST_FUNCS["openai"] = explaining(client.ASYNC_REQUEST_FUNCS["openai"])
    command: Any = importlib.import_module("vllm.entrypoints.cli.main")
    return command.main() or 0


if __name__ == "__main__":
    sys.exit(main())
