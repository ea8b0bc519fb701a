"""What the tests of the clouds' dialogues share: a dialogue answered from a list, or by the fake server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from spotwise.cloud.dialogue import Dialogue, HttpAnswer, HttpRequest
from spotwise.cloud.http_client import HttpClient
from tests.fakes.metadata_server import MetadataServer

T = TypeVar("T")

#: 2026-11-22 15:00:00 UTC.
NOW = 1_795_359_600.0


def answered(dialogue: Dialogue[T], answers: Iterable[HttpAnswer]) -> tuple[T, list[HttpRequest]]:
    """Run a dialogue against these answers, all of which it must consume; return its findings and its requests."""
    left, requested = list(answers), []
    try:
        request = next(dialogue)
        while True:
            requested.append(request)
            request = dialogue.send(left.pop(0))
    except StopIteration as end:
        assert left == []
        return end.value, requested


async def carried_out(dialogue: Dialogue[T], server: MetadataServer, timeout_s: float = 5.0) -> T:
    async with HttpClient(server.url, timeout_s) as door:
        return await door.converse(dialogue)
