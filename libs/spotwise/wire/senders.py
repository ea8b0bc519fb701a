"""Messages that each role may send to an inbox: one table for all roles. An inbox's subject names its sender's role
(`subjects.inbox_from`); the broker lets no member name another's (`permissions`), and the receiver drops what that role
may not send.
"""

from __future__ import annotations

from collections.abc import Mapping

from spotwise.core.messages import mesh as m
from spotwise.core.messages.mesh import Message
from spotwise.wire.roles import MeshRole

#: Of each role the messages that its members put into inboxes of others. A new message gets a place here, or is never received.
SENT_BY: Mapping[MeshRole, frozenset[type[Message]]] = {
    MeshRole.GATEWAY: frozenset({m.AttemptsConfirmed, m.MoveAcknowledged}),
    MeshRole.SCHEDULER: frozenset(
        {
            # to gateways
            m.RequestAccepted,
            m.RequestRejected,
            m.RequestAssigned,
            m.ConfirmAttempts,
            m.TokenBatch,
            # to workers
            m.ReserveKv,
            m.StartPrefill,
            m.CancelRequest,
            m.ChangeHomePool,
            m.ForgetGateway,
        }
    ),
    MeshRole.WORKER: frozenset(
        {
            # to gateways
            m.TokenBatch,
            m.ConfirmAttempts,
            m.RequestMoved,  # and to schedulers
            # to schedulers, and to the workers that requests move away from
            m.KvReserved,
            m.KvRefused,
            m.PrefillAccepted,
            # to other workers
            m.ReserveKv,
            m.CancelRequest,
            m.RenewLeases,
            # to planners, and to operators
            m.WorkerSurveyed,
            m.DeviceSurveyed,
            m.GroupFormed,
            m.MoveEnded,
        }
    ),
    MeshRole.PLANNER: frozenset({m.SurveyWorker, m.MoveRequest, m.GiveBackRequest, m.SurveyDevice, m.LeadGroup}),
    MeshRole.WATCHER: frozenset(),
    MeshRole.OPERATOR: frozenset({m.MoveRequest}),
}
#: The roles of which one process at a time acts, in its term. An order of any other names no term.
_HAVE_TERMS = frozenset({MeshRole.SCHEDULER, MeshRole.PLANNER})


def may_send(role: MeshRole | None, message: Message) -> bool:
    """Tell whether a role puts such a message into inboxes; `None`, no role, puts none."""
    if role is None or type(message) not in SENT_BY[role]:
        return False
    return role in _HAVE_TERMS or not getattr(message, "term", 0)
