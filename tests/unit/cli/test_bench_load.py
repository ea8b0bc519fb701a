"""`spotwise bench load` against an HTTP server that requires a key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.http_servers import QuietHandler, answering
from tests.unit.cli.command_line import CommandLine

KEY = "secret"


class Handler(QuietHandler):
    """A gateway that streams two tokens to clients with the key."""

    def get(self) -> None:
        self._answer(b'{"data": [{"id": "tiny"}]}')

    def post(self) -> None:
        self.body()
        events: list[dict[str, Any]] = [{"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}]
        events.append({"choices": [], "usage": {"completion_tokens": 2}})
        self._answer(b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events))

    def _answer(self, content: bytes) -> None:
        known = self.headers["Authorization"] == f"Bearer {KEY}" and self.path in ("/v1/models", "/v1/completions")
        self.answer(200 if known else 401, content)


@pytest.fixture
def gateway_url() -> Iterator[str]:
    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_a_mesh_with_keys_can_be_measured(
    spotwise: CommandLine, gateway_url: str, suffix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SPOTWISE_API_KEY is sent, and the URL may end in /v1, as for `chat`; the report's folder is made."""
    monkeypatch.setenv("SPOTWISE_API_KEY", KEY)
    report = tmp_path / "results" / "load.json"
    options = ("--streams", "1", "--requests", "1", "--output-tokens", "2", "--json", str(report))
    ended = spotwise("bench", "load", "--url", gateway_url + suffix, *options)
    assert ended.status == 0, ended.stderr
    assert {row["name"] for row in json.loads(report.read_text())["rows"]} >= {"1 streams: TTFT p50, ms"}


def test_without_the_key_the_refusal_is_reported(spotwise: CommandLine, gateway_url: str) -> None:
    ended = spotwise("bench", "load", "--url", gateway_url, "--streams", "1")
    assert ended.status == 1
    assert "401" in ended.stderr


@pytest.mark.parametrize("place", ["a-file/x.json", "."])
def test_a_report_that_cannot_be_written_is_refused_before_the_run(
    spotwise: CommandLine, tmp_path: Path, place: str
) -> None:
    (tmp_path / "a-file").write_text("")
    ended = spotwise("bench", "load", "--url", "http://127.0.0.1:1", "--json", str(tmp_path / place))
    assert ended.status == 2
    [line] = ended.stderr.splitlines()
    assert "--json" in line
