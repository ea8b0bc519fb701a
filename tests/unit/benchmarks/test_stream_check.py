"""A server whose stream vLLM's client could not read is found before the client is started."""

from __future__ import annotations

import pytest

from spotwise.benchmarks.yardsticks.stream_check import require_readable_stream
from spotwise.cli.bench.servers import ServerEndpoint
from spotwise.cli.errors import CommandError
from tests.unit.benchmarks.fake_completions import DONE, TOKEN, completions, event, usage


def test_a_readable_stream_passes() -> None:
    with completions(8 * TOKEN + usage(8) + DONE) as endpoint:
        require_readable_stream(endpoint, "a server")


def test_a_usage_beside_the_last_text_is_read() -> None:
    last = event('{"choices": [{"text": ""}], "usage": {"completion_tokens": 8}}')
    with completions(8 * TOKEN + last + DONE) as endpoint:
        require_readable_stream(endpoint, "llama.cpp")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (8 * TOKEN + b": ping\n\n" + usage(8) + DONE, "': ping' is no event of data"),
        (TOKEN + event('{"choices": [') + DONE, "JSONDecodeError"),
        (TOKEN + event('{"error": {"message": "worker lost"}}'), "the stream has an error: .*worker lost"),
        (TOKEN + event("[1]"), "AttributeError"),
        (8 * TOKEN + usage(8), r"ended without \[DONE\]"),
        (7 * TOKEN + usage(7) + DONE, "7 tokens where 8"),
        (8 * TOKEN + DONE, "0 tokens where 8"),
        (usage(8) + DONE, "no event has text"),
        (b"", "no event has text"),
        (b"<html>", "'<html>' is no event of data"),
    ],
)
def test_an_unreadable_stream_is_shown(body: bytes, reason: str) -> None:
    with (
        completions(body) as endpoint,
        pytest.raises(
            CommandError, match=rf"cannot read a stream of a server \(http.*{reason}.*status 200, text/event"
        ),
    ):
        require_readable_stream(endpoint, "a server")


def test_a_refusal_shows_its_status_and_body() -> None:
    with (
        completions(b'{"error": "no slot"}', 500, "application/json") as endpoint,
        pytest.raises(CommandError, match=r"refused; status 500, application/json; the body began '.*no slot"),
    ):
        require_readable_stream(endpoint, "a server")


def test_a_server_that_is_gone_is_named() -> None:
    with completions(b"") as endpoint:
        pass
    with pytest.raises(CommandError, match=r"a stream of llama\.cpp .*ConnectError.*no status"):
        require_readable_stream(ServerEndpoint(endpoint.url, "peer"), "llama.cpp")
