"""A client of thousands of streams, on one of them."""

from __future__ import annotations

from spotwise.benchmarks.stream_client import StreamConnection
from tests.unit.benchmarks.sse_gateway import breaking, failing, gateway, refusing, short, whole


async def test_streams_are_requested_and_reported_one_after_the_other() -> None:
    """One connection carries the streams in turn, and each counts as open from its first token to its end."""
    changes: list[int] = []
    async with gateway(whole, whole) as (url, bodies):
        connection = StreamConnection(url, "m", changes.append)
        outcomes = [await connection.stream_completion([1, 2, 3], 2) for _ in range(2)]
        connection.close()
        connection.close()
    assert [(each.tokens, each.failure) for each in outcomes] == [(2, None)] * 2
    assert all(each.first_s is not None and each.sent_s <= each.first_s <= each.ended_s for each in outcomes)
    assert all(each.tpot_s is not None and each.tpot_s >= 0 for each in outcomes)
    assert changes == [1, -1, 1, -1]
    assert [(body["prompt"], body["max_tokens"], body["stream"]) for body in bodies] == [([1, 2, 3], 2, True)] * 2


async def test_every_kind_of_failure_is_an_outcome() -> None:
    """Each failure is an outcome, and a later request may succeed, on a new connection if needed."""
    async with gateway(failing, short, refusing, breaking, whole) as (url, _):
        connection = StreamConnection(url, "m", lambda change: None)
        failures = [(await connection.stream_completion([1], 2)).failure for _ in range(5)]
        connection.close()
    assert failures[0] == "an error in the stream: not_recovered"
    assert failures[1] == "0 tokens where 2 were requested"
    assert failures[2] == "status 429"
    assert str(failures[3]).startswith("the connection broke")
    assert failures[4] is None
    gone = await StreamConnection(url, "m", lambda change: None).stream_completion([1], 2)
    assert str(gone.failure).startswith("cannot connect")
    assert (gone.first_s, gone.tpot_s) == (None, None)
