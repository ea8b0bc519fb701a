"""A server of completions that answers every request with the same bytes, right or wrong."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator

from spotwise.cli.bench.servers import ServerEndpoint


def event(text: str) -> bytes:
    """Return one message of a stream."""
    return f"data: {text}\n\n".encode()


TOKEN = event('{"choices": [{"index": 0, "text": " a", "finish_reason": null}]}')
DONE = event("[DONE]")


def usage(tokens: int) -> bytes:
    """Return the event of an answer's usage."""
    return event(json.dumps({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}}))


@contextlib.contextmanager
def completions(body: bytes, status: int = 200, content_type: str = "text/event-stream") -> Iterator[ServerEndpoint]:
    """Serve this answer on a port of the loopback interface for the block."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield ServerEndpoint(f"http://127.0.0.1:{server.server_address[1]}", "peer")
        finally:
            server.shutdown()
            thread.join()
