"""A proxy on loopback between a program and a mesh, which scripts the model: it adds to what the program asks.

A call of a tool is made certain by a `tool_choice` and a schema with one value, which the mesh follows as a grammar; every
other answer is made repeatable by a temperature of 0. Nothing else is changed, and answers pass as they come.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import httpx

#: Changes a body in place.
Edit = Callable[[dict[str, Any]], None]
_GENERATING = ("/responses", "/messages", "/chat/completions")
_OF_CONNECTIONS = ("host", "content-length", "connection", "transfer-encoding")


def repeatable(body: dict[str, Any]) -> None:
    """Make an answer the same each time."""
    body["temperature"] = 0


def calling(name: str, arguments: dict[str, Any]) -> Edit:
    """Make the model call a tool with these arguments."""
    schema = {
        "type": "object",
        "properties": {key: {"const": value} for key, value in arguments.items()},
        "required": list(arguments),
        "additionalProperties": False,
    }

    def edit(body: dict[str, Any]) -> None:
        repeatable(body)
        (tool,) = (each for each in body["tools"] if name in (each.get("name"), each.get("function", {}).get("name")))
        if "input_schema" in tool:
            tool["input_schema"] = schema
            body["tool_choice"] = {"type": "tool", "name": name}
        elif "function" in tool:
            tool["function"]["parameters"] = schema
            body["tool_choice"] = {"type": "function", "function": {"name": name}}
        else:
            tool["parameters"] = schema
            body["tool_choice"] = {"type": "function", "name": name}

    return edit


def text_of(stream: bytes) -> str:
    """Return what the model says in a stream of chats, responses or messages."""
    said = ""
    for line in stream.decode().splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        kind, delta = event.get("type"), event.get("delta")
        if kind == "response.output_text.delta":
            said += delta
        elif kind == "content_block_delta":
            said += delta.get("text", "")
        elif event.get("object") == "chat.completion.chunk":
            said += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    return said


class ScriptedProxy:
    """Forwards to a mesh; a context manager.

    Args:
        target: URL of the mesh, without `/v1`.
        script: edits of the requests for an answer, in order; the last one is of all that follow.

    Attributes:
        asked: bodies of the requests for an answer, as the program sent them.
        statuses: of their answers.
        warnings: what the mesh ignored of them.
        texts: what the model said in them, where they were streams.
    """

    def __init__(self, target: str, script: Sequence[Edit]) -> None:
        self.asked: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        self.warnings: list[str] = []
        self.texts: list[str] = []
        self._script = list(script)
        self._client = httpx.Client(base_url=target, timeout=600.0, trust_env=False)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Base of the API, without `/v1`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._client.close()

    def _edited(self, path: str, content: bytes) -> bytes:
        if not path.partition("?")[0].endswith(_GENERATING):
            return content
        body = json.loads(content)
        self.asked.append(json.loads(content))
        self._script[min(len(self.asked), len(self._script)) - 1](body)
        return json.dumps(body).encode()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

            def _forward(self) -> None:
                content = self.rfile.read(int(self.headers.get("content-length") or 0))
                edited = proxy._edited(self.path, content) if self.command == "POST" else content
                headers = {key: value for key, value in self.headers.items() if key.lower() not in _OF_CONNECTIONS}
                with proxy._client.stream(self.command, self.path, content=edited, headers=headers) as answer:
                    if edited is not content:
                        proxy.statuses.append(answer.status_code)
                        proxy.warnings.append(answer.headers.get("x-spotwise-warning", ""))
                    self.send_response(answer.status_code)
                    for key, value in answer.headers.items():
                        if key.lower() not in _OF_CONNECTIONS:
                            self.send_header(key, value)
                    self.send_header("Connection", "close")
                    self.end_headers()
                    received = bytearray()
                    for chunk in answer.iter_raw():
                        received += chunk
                        self.wfile.write(chunk)
                        self.wfile.flush()
                    if edited is not content:
                        proxy.texts.append(text_of(bytes(received)))
                self.close_connection = True

            do_GET = do_HEAD = do_POST = _forward  # noqa: N815 - names of the standard library

        return Handler
