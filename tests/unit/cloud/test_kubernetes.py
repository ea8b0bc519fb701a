"""Kubernetes: taints of a node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spotwise.cloud.dialogue import HttpAnswer
from spotwise.cloud.kubernetes import Kubernetes
from spotwise.core.spot.signs import MetadataAnswered
from tests.fakes.metadata_server import NODE_TOKEN, MetadataServer
from tests.unit.cloud.speaking import NOW, answered, carried_out


def cloud(node_name: str = "node-0") -> Kubernetes:
    """A node's dialogues, with a grace period of 25 seconds."""
    return Kubernetes(node_name, 25.0, lambda: NODE_TOKEN)


def answer_to(spec: Any) -> MetadataAnswered:
    found, _ = answered(cloud().query(NOW), [HttpAnswer(200, json.dumps({"kind": "Node", "spec": spec}).encode())])
    return found


async def test_a_taint_with_a_time_has_a_deadline() -> None:
    """The time at which it was added and the grace period; a node without it has no sign."""
    async with MetadataServer(clock=lambda: NOW) as server:
        assert await carried_out(cloud().query(NOW), server) == MetadataAnswered()
        server.announce(NOW + 30)
        (sign,) = (await carried_out(cloud().query(NOW + 7), server)).signs
        assert (sign.deadline_s, sign.is_hint) == (NOW + 25, False)
        server.taint_has_a_time = False
        (sign,) = (await carried_out(cloud().query(NOW + 7), server)).signs
        assert (sign.deadline_s, sign.grace_s) == (None, 25.0)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("aws-node-termination-handler/spot-itn", False),
        ("aws-node-termination-handler/rebalance-recommendation", True),
        ("cloud.google.com/impending-node-termination", False),
        ("karpenter.sh/disrupted", False),
    ],
)
def test_the_taints_of_every_node_remover_count(key: str, hint: bool) -> None:
    """A recommendation is a hint; other taints are none of ours; one key is one sign."""
    found = answer_to(
        {"taints": [{"key": "other"}, {"key": key, "effect": "NoSchedule"}, {"key": key, "effect": "NoExecute"}]}
    )
    assert [(sign.event_id, sign.is_hint) for sign in found.signs] == [(key, hint)]


@pytest.mark.parametrize("spec", [{}, {"taints": None}, {"taints": []}, {"taints": [None, 1, {"key": 1}]}])
def test_a_node_without_taints_has_no_sign(spec: Any) -> None:
    """Kubernetes leaves an empty list out."""
    assert answer_to(spec) == MetadataAnswered()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"kind": "Pod"}', b'{"kind": "Node", "spec": 1}'])
def test_what_is_no_node_is_a_problem(body: bytes) -> None:
    found, _ = answered(cloud().query(NOW), [HttpAnswer(200, body)])
    assert (found.signs, found.problem) == ((), "GET /api/v1/nodes/node-0: no node")


async def test_a_missing_permission_to_read_the_node_is_reported() -> None:
    """A wrong token, a node that does not exist, a name that must be quoted."""
    async with MetadataServer() as server:
        wrong = Kubernetes("node-0", 25.0, lambda: "wrong")
        assert (await carried_out(wrong.query(NOW), server)).problem == "GET /api/v1/nodes/node-0: status 401"
        found = await carried_out(cloud("a/../b").query(NOW), server)
        assert found.problem == "GET /api/v1/nodes/a%2F..%2Fb: status 404"


def test_a_token_that_cannot_be_read_is_a_problem() -> None:
    tokens = iter((None, NODE_TOKEN))
    kubernetes = Kubernetes("node-0", 25.0, lambda: next(tokens))
    found, requested = answered(kubernetes.query(NOW), [])
    assert requested == []
    assert found.problem == "GET /api/v1/nodes/node-0: the service account's token cannot be read"
    _, requested = answered(kubernetes.query(NOW), [HttpAnswer(404)])
    assert requested[0].headers["Authorization"] == f"Bearer {NODE_TOKEN}"


async def test_a_node_is_found_by_its_name() -> None:
    async with MetadataServer(clouds=("kubernetes",)) as server:
        assert await carried_out(cloud().detect(), server)
        assert not await carried_out(cloud("other").detect(), server)
