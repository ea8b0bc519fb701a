"""AWS: tokens, instance actions, rebalance recommendations."""

from __future__ import annotations

import pytest

from spotwise.cloud.aws import INSTANCE_ACTION, REBALANCE, TOKEN, Aws
from spotwise.cloud.dialogue import HttpAnswer
from spotwise.core.spot.signs import MetadataAnswered, Sign
from tests.fakes.metadata_server import Fault, MetadataServer
from tests.unit.cloud.speaking import NOW, answered, carried_out

TOKEN_GIVEN = HttpAnswer(200, b"token", {"x-aws-ec2-metadata-token-ttl-seconds": "100"})
NONE = HttpAnswer(404)
ACTION = HttpAnswer(200, b'{"action": "stop", "time": "2026-11-22T15:02:00Z"}')


async def test_an_instance_that_may_stay_has_no_sign() -> None:
    """Both documents are missing, which is the usual answer and no problem."""
    async with MetadataServer() as server:
        assert await carried_out(Aws().query(NOW), server) == MetadataAnswered()
        assert [(question.method, question.path) for question in server.questions] == [
            ("PUT", TOKEN),
            ("GET", INSTANCE_ACTION),
            ("GET", REBALANCE),
        ]


async def test_an_action_has_its_deadline_and_a_recommendation_has_none() -> None:
    async with MetadataServer() as server:
        server.recommend_rebalance()
        deadline_s = server.announce(NOW + 120)
        found = await carried_out(Aws().query(NOW), server)
    action, rebalance = found.signs
    assert (action.deadline_s, action.is_hint, action.reason) == (deadline_s, False, "aws: terminate")
    assert (rebalance.deadline_s, rebalance.is_hint) == (None, True)
    assert not action.acknowledgeable


async def test_a_token_is_kept_and_renewed_at_once_when_it_is_refused() -> None:
    """One PUT for many questions; a 401 in the middle costs one more and no answer."""
    async with MetadataServer() as server:
        aws = Aws()
        deadline_s = server.announce(NOW + 60)
        for _ in range(3):
            assert (await carried_out(aws.query(NOW), server)).signs[0].deadline_s == deadline_s
        assert len(server.asked(TOKEN)) == 1
        server.forget_tokens()
        found = await carried_out(aws.query(NOW), server)
        assert (found.problem, found.signs[0].deadline_s) == (None, deadline_s)
        assert len(server.asked(TOKEN)) == 2


async def test_tokens_of_few_uses_are_renewed_as_often() -> None:
    async with MetadataServer() as server:
        server.aws_token_uses = 3
        aws = Aws()
        for _ in range(6):
            assert await carried_out(aws.query(NOW), server) == MetadataAnswered()
        assert len(server.asked(TOKEN)) == 4


def test_a_token_is_renewed_before_it_ends() -> None:
    """After four fifths of the time that the service gave it."""
    aws = Aws()
    answered(aws.query(NOW), [TOKEN_GIVEN, NONE, NONE])
    _, requested = answered(aws.query(NOW + 79), [NONE, NONE])
    assert [request.method for request in requested] == ["GET", "GET"]
    _, requested = answered(aws.query(NOW + 81), [TOKEN_GIVEN, NONE, NONE])
    assert [request.method for request in requested] == ["PUT", "GET", "GET"]


def test_a_service_that_refuses_its_own_token_is_a_problem_and_no_loop() -> None:
    found, _ = answered(Aws().query(NOW), [TOKEN_GIVEN, *[HttpAnswer(401), TOKEN_GIVEN, HttpAnswer(401)] * 2])
    assert found.signs == ()
    assert found.problem == f"GET {INSTANCE_ACTION}: status 401; GET {REBALANCE}: status 401"


@pytest.mark.parametrize(
    "refusal",
    [
        HttpAnswer(404),
        HttpAnswer(403),
        HttpAnswer(200, b""),
        HttpAnswer(200, "tökén".encode()),
        HttpAnswer(200, b"a\nb"),
    ],
)
def test_without_a_token_nothing_is_known(refusal: HttpAnswer) -> None:
    """A missing token endpoint is not taken for a missing action, which would withdraw a sign."""
    found, requested = answered(Aws().query(NOW), [refusal, refusal])
    assert found.signs == ()
    assert found.problem is not None
    assert found.problem.startswith(f"PUT {TOKEN}: ")
    assert {request.path for request in requested} == {TOKEN}


def test_one_document_that_fails_leaves_the_other() -> None:
    """The action counts though the recommendation cannot be read."""
    found, _ = answered(Aws().query(NOW), [TOKEN_GIVEN, ACTION, HttpAnswer(500)])
    assert found == MetadataAnswered(
        (Sign("aws-instance-action", "aws: stop", NOW + 120),), f"GET {REBALANCE}: status 500"
    )


@pytest.mark.parametrize("written", ['"soon"', "null", "17", '"2026-13-45T00:00:00Z"'])
def test_an_action_without_a_readable_time_is_a_sign_still(written: str) -> None:
    """The instance must go, so the shortest notice of all clouds counts from the first sight."""
    body = f'{{"action": "terminate", "time": {written}}}'.encode()
    found, _ = answered(Aws().query(NOW), [TOKEN_GIVEN, HttpAnswer(200, body), NONE])
    assert found.problem is None
    assert [(sign.deadline_s, sign.grace_s) for sign in found.signs] == [(None, 30.0)]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"terminate"', b'{"time": "2026-11-22T15:02:00Z"}', b'{"action": 1}']
)
def test_an_action_that_cannot_be_read_is_a_problem(body: bytes) -> None:
    found, _ = answered(Aws().query(NOW), [TOKEN_GIVEN, HttpAnswer(200, body), NONE])
    assert (found.signs, found.problem) == ((), f"GET {INSTANCE_ACTION}: a document that cannot be read")


async def test_a_detection_leaves_its_token_to_the_questions() -> None:
    """The time of that token is not known, so that one is renewed."""
    async with MetadataServer() as server:
        aws = Aws()
        await carried_out(aws.detect(), server)
        server.faults.append(Fault(TOKEN, times=0))
        assert (await carried_out(aws.query(NOW), server)).problem is None
