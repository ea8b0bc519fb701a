"""`spotwise chat` as a process, against an HTTP server that implements the gateway's streaming API~."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any

import pytest

from tests.fakes.http_servers import QuietHandler, answering

pytestmark = pytest.mark.mesh


class ApiServer(ThreadingHTTPServer):
    """Answers with the question reversed, word by word; keeps the requests it got."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.refuse_with: int | None = None
        self.break_off = False
        self.hang_after_first_word = False
        self.client_gone = threading.Event()


class Handler(QuietHandler):
    server: ApiServer

    def get(self) -> None:
        self.server.keys.append(self.headers["Authorization"])
        self.answer(200, json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model"}]}).encode())

    def post(self) -> None:
        body = json.loads(self.body())
        self.server.requests.append(body)
        if self.server.refuse_with is not None:
            refusal = {"error": {"message": "not today", "type": "x", "code": None}}
            self.answer(self.server.refuse_with, json.dumps(refusal).encode())
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("X-Request-Id", "req-7")
        self.end_headers()
        words = body["messages"][-1]["content"].split()[::-1]
        for index, word in enumerate(words):
            self._event(
                {"choices": [{"index": 0, "delta": {"content": word if index == 0 else f" {word}"}}], "usage": None}
            )
            if self.server.break_off:
                self._event({"error": {"message": "worker lost"}})
                return
            if self.server.hang_after_first_word:
                # The client's closing is all that comes from it any more.
                if self.rfile.read(1) == b"":
                    self.server.client_gone.set()
                return
        self._event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(words)}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    with answering(server) as server.url:
        yield server


def chat(*arguments: str, stdin: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spotwise.cli", "chat", *arguments],
        env=os.environ | env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class Terminal:
    def __init__(self, *arguments: str) -> None:
        self._controller, terminal = pty.openpty()
        take_terminal = (
            "import fcntl, os, signal, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
            "signal.signal(signal.SIGINT, signal.SIG_DFL);"  # a job in a shell's background ignores it
            "os.execv(sys.executable, [sys.executable, '-m', 'spotwise.cli', 'chat', *sys.argv[1:]])"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", take_terminal, *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=os.environ | {"TERM": "dumb"},
        )
        os.close(terminal)
        self._unread = ""

    def read_until(self, text: str) -> str:
        """Return the output up to and including `text`, and keep the rest for the next call."""
        while text not in self._unread:
            assert select.select([self._controller], [], [], 30.0)[0], (
                f"waited in vain for {text!r} after {self._unread!r}"
            )
            self._unread += os.read(self._controller, 4096).decode(errors="replace")
        seen, _, self._unread = self._unread.partition(text)
        return seen + text

    def type(self, keys: str) -> None:
        os.write(self._controller, keys.encode())

    def wait(self) -> int:
        return self.process.wait(30)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._controller)


@pytest.fixture
def terminal(api: ApiServer) -> Iterator[Terminal]:
    terminal = Terminal("--url", api.url)
    yield terminal
    terminal.close()


def test_one_question_prints_the_answer_alone_on_stdout(api: ApiServer) -> None:
    """The figures go to stderr, so that a script reads nothing but the answer."""
    result = chat("one two three", "--url", api.url)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "three two one\n"
    assert "TTFT" in result.stderr
    assert "3 tokens" in result.stderr
    assert "req-7" in result.stderr


def test_options_reach_the_request(api: ApiServer) -> None:
    """System message, length and temperature; the URL may end in /v1."""
    result = chat("hi", "--url", f"{api.url}/v1", "--system", "Be brief.", "--max-tokens", "9", "--temperature", "0")
    assert result.returncode == 0, result.stderr
    assert api.requests == [
        {
            "model": "tiny",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
            "max_tokens": 9,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_a_question_may_be_piped_in(api: ApiServer) -> None:
    """Without an argument the question is read from stdin, and an empty one is refused."""
    assert chat("--url", api.url, stdin="red green\n").stdout == "green red\n"
    empty = chat("--url", api.url, stdin="")
    assert empty.returncode == 1
    assert "no question" in empty.stderr


def test_the_key_of_the_environment_is_sent(api: ApiServer) -> None:
    assert chat("hi", "--url", api.url, SPOTWISE_API_KEY="secret").returncode == 0
    assert api.keys == ["Bearer secret"]


def test_text_is_never_read_as_markup(api: ApiServer) -> None:
    assert chat("[/bold] [red]", "--url", api.url).stdout == "[red] [/bold]\n"


@pytest.mark.parametrize(("status", "hint"), [(503, "not today"), (401, "SPOTWISE_API_KEY")])
def test_a_refusal_is_said_and_fails(api: ApiServer, status: int, hint: str) -> None:
    api.refuse_with = status
    result = chat("hi", "--url", api.url)
    assert result.returncode == 1
    assert "not today" in result.stderr
    assert hint in result.stderr


def test_an_answer_that_breaks_off_fails(api: ApiServer) -> None:
    api.break_off = True
    result = chat("one two", "--url", api.url)
    assert result.returncode == 1
    assert result.stdout.strip() == "two"
    assert "worker lost" in result.stderr


def test_a_conversation_remembers_until_it_is_reset(api: ApiServer, terminal: Terminal) -> None:
    """Each question is sent with the conversation so far; /reset drops it; Ctrl-D ends with status 0."""
    terminal.read_until("> ")
    terminal.type("a b\n")
    assert "b a" in terminal.read_until("req-7")
    terminal.read_until("> ")
    terminal.type("c d\n")
    assert "d c" in terminal.read_until("req-7")
    terminal.read_until("> ")
    terminal.type("/reset\n")
    terminal.read_until("forgotten")
    terminal.read_until("> ")
    terminal.type("e f\n")
    terminal.read_until("req-7")
    terminal.read_until("> ")
    terminal.type("\x04")
    assert terminal.wait() == 0
    said = [[message["content"] for message in request["messages"]] for request in api.requests]
    assert said == [["a b"], ["a b", "b a", "c d"], ["e f"]]


def test_ctrl_c_stops_an_answer_and_not_the_conversation(api: ApiServer, terminal: Terminal) -> None:
    """The connection closes, which cancels the request; the part that was read stays in the conversation; /exit leaves."""
    api.hang_after_first_word = True
    terminal.read_until("> ")
    terminal.type("one two\n")
    terminal.read_until("two\r\n")
    terminal.read_until("two")
    terminal.type("\x03")
    terminal.read_until("stopped")
    assert api.client_gone.wait(30)
    api.hang_after_first_word = False
    terminal.read_until("> ")
    terminal.type("again\n")
    terminal.read_until("req-7")
    terminal.read_until("> ")
    terminal.type("/exit\n")
    assert terminal.wait() == 0
    assert [message["content"] for message in api.requests[1]["messages"]] == ["one two", "two", "again"]
