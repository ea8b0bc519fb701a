"""The table of who sends what into inboxes is whole."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from spotwise.cluster_scheduler import __main__ as scheduler
from spotwise.core.messages import mesh as m
from spotwise.gateway.mesh import client as gateway
from spotwise.migration_planner import planner
from spotwise.wire.roles import MeshRole
from spotwise.wire.senders import SENT_BY, may_send
from spotwise.worker import runtime as worker
from spotwise.worker.groups import process as device

MESSAGES = frozenset(get_args(m.Message))
#: What has a subject of its own, which only its senders may publish on, or is a reply.
ELSEWHERE = frozenset(
    {
        *(m.SubmitRequest, m.CloseRequest, m.Member, m.Drain, m.DrainReply, m.InterruptionReported),
        *(m.ReshapeMesh, m.ReshapeReply, m.LoadReported, m.FleetReported, m.FleetOrder, m.ShowFleet, m.FleetView),
    }
)
#: What some member's inbox takes, and the operator's (`cli/move.py`).
TAKEN = frozenset({m.MoveEnded}).union(*(each._TO_INBOX for each in (gateway, scheduler, planner, worker, device)))


def test_every_message_of_the_mesh_has_its_place() -> None:
    """A message that goes to an inbox and has no sender in `SENT_BY` would be dropped by every receiver."""
    sent = frozenset[type]().union(*SENT_BY.values())
    assert sent | ELSEWHERE == MESSAGES, "a new message is in SENT_BY of libs/spotwise/wire/senders.py, or in ELSEWHERE"
    assert not sent & ELSEWHERE
    assert set(SENT_BY) == set(MeshRole)


def test_what_inboxes_take_is_what_is_sent_to_them() -> None:
    """No inbox waits for a message that no role may send, and none is sent that no inbox takes."""
    assert frozenset[type]().union(*SENT_BY.values()) == TAKEN & MESSAGES


@pytest.mark.parametrize(
    ("role", "message", "is_allowed"),
    [
        (MeshRole.SCHEDULER, m.CancelRequest("r", 1, term=7), True),
        (MeshRole.WORKER, m.CancelRequest("r", 1), True),
        (MeshRole.WORKER, m.CancelRequest("r", 1, term=7), False),
        (MeshRole.GATEWAY, m.CancelRequest("r", 1), False),
        (MeshRole.PLANNER, m.MoveRequest("r", 1, "planner-0", "token-1", term=7), True),
        (MeshRole.OPERATOR, m.MoveRequest("r", 1, "operator.1", "token-1"), True),
        (MeshRole.OPERATOR, m.MoveRequest("r", 1, "operator.1", "token-1", term=7), False),
        (None, m.CancelRequest("r", 1), False),
    ],
)
def test_only_who_acts_in_terms_names_one(role: MeshRole | None, message: Any, is_allowed: bool) -> None:
    """A term of its own would make receivers deaf to those who have terms."""
    assert may_send(role, message) is is_allowed
