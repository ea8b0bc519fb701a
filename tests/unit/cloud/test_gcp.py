"""Google Cloud: a plain question, then questions that wait."""

from __future__ import annotations

import asyncio

import pytest

from spotwise.cloud.dialogue import HttpAnswer
from spotwise.cloud.gcp import PREEMPTED, Gcp
from spotwise.cloud.http_client import HttpClient
from spotwise.core.spot.signs import MetadataAnswered, Sign
from tests.contracts.waiting import until
from tests.fakes.metadata_server import Fault, MetadataServer
from tests.unit.cloud.speaking import NOW, answered, carried_out

FALSE = HttpAnswer(200, b"FALSE", {"etag": "a1"})
SIGN = Sign("gcp-preempted", "gcp: preempted", None, 30.0)


async def test_an_instance_that_is_preempted_already_is_found_at_once() -> None:
    """The first question does not wait for a change that has been."""
    async with MetadataServer() as server:
        server.announce(NOW + 30)
        assert await carried_out(Gcp().query(NOW), server) == MetadataAnswered((SIGN,))
        assert server.questions[0].query == {}


async def test_a_second_question_waits_for_the_change() -> None:
    async with MetadataServer() as server, HttpClient(server.url, 5.0) as door:
        gcp = Gcp()
        assert await door.converse(gcp.query(NOW)) == MetadataAnswered()
        waiting = asyncio.create_task(door.converse(gcp.query(NOW)))
        await until(lambda: len(server.asked(PREEMPTED)) == 2)
        assert server.questions[1].query["wait_for_change"] == ["true"]
        await asyncio.sleep(0.05)
        assert not waiting.done()
        server.announce(NOW + 30)
        assert await waiting == MetadataAnswered((SIGN,))


async def test_a_change_between_two_questions_is_not_missed() -> None:
    async with MetadataServer() as server:
        gcp = Gcp()
        await carried_out(gcp.query(NOW), server)
        server.announce(NOW + 30)
        assert await carried_out(gcp.query(NOW), server) == MetadataAnswered((SIGN,))


async def test_a_question_held_back_ends_when_nothing_happens() -> None:
    """A long poll without a change returns the same value when the service ends it, before the client's time-out."""
    async with MetadataServer() as server:
        gcp = Gcp(held_s=1)
        await carried_out(gcp.query(NOW), server)
        assert await carried_out(gcp.query(NOW), server, timeout_s=4.0) == MetadataAnswered()
        assert server.questions[1].query["timeout_sec"] == ["1"]


def test_after_a_problem_the_question_is_plain_again() -> None:
    """After an error the known version may be old, so the next query does not wait."""
    gcp = Gcp()
    answered(gcp.query(NOW), [FALSE])
    found, (request,) = answered(gcp.query(NOW), [HttpAnswer(503)])
    assert "last_etag=a1" in request.path
    assert (found.signs, found.problem) == ((), f"GET {PREEMPTED}: status 503")
    _, (request,) = answered(gcp.query(NOW), [FALSE])
    assert request.path == PREEMPTED


def test_without_a_version_questions_stay_plain() -> None:
    """Without a version a query would wait for a change that has happened."""
    gcp = Gcp()
    answered(gcp.query(NOW), [HttpAnswer(200, b"FALSE")])
    _, (request,) = answered(gcp.query(NOW), [FALSE])
    assert request.path == PREEMPTED


@pytest.mark.parametrize("body", [b"", b"MAYBE", b"\xff", b"TRUE FALSE", b"<html>"])
def test_what_is_neither_true_nor_false_is_a_problem(body: bytes) -> None:
    found, _ = answered(Gcp().query(NOW), [HttpAnswer(200, body, {"etag": "1"})])
    assert (found.signs, found.problem) == ((), f"GET {PREEMPTED}: neither TRUE nor FALSE")


async def test_a_service_that_does_not_say_it_is_googles_is_not_taken_for_it() -> None:
    async with MetadataServer(clouds=("aws",)) as server:
        server.faults.append(Fault(status=200))
        assert not await carried_out(Gcp().detect(), server)
