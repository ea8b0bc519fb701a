"""Tests of Azure: the machine of an event, its time, and its acknowledgement."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spotwise.cloud.azure import EVENTS, Azure
from spotwise.cloud.dialogue import HttpAnswer
from spotwise.core.spot.signs import MetadataAnswered
from tests.fakes.metadata_server import Fault, MetadataServer
from tests.unit.cloud.speaking import NOW, answered, carried_out

PATH = EVENTS.partition("?")[0]


def event(**fields: Any) -> dict[str, Any]:
    """A preemption of `vm`, but for these fields."""
    return {
        "EventId": "e",
        "EventType": "Preempt",
        "EventStatus": "Scheduled",
        "Resources": ["vm"],
        "NotBefore": "Sun, 22 Nov 2026 15:00:30 GMT",
    } | fields


def answer_to(*events: Any) -> MetadataAnswered:
    """Return the reading of these events by a machine named `vm`."""
    body = json.dumps({"DocumentIncarnation": 1, "Events": events}).encode()
    found, _ = answered(Azure("vm").query(NOW), [HttpAnswer(200, body)])
    return found


async def test_a_preemption_has_its_deadline_and_waits_for_an_answer() -> None:
    async with MetadataServer("Spot-7") as server:
        azure = Azure()
        assert await carried_out(azure.query(NOW), server) == MetadataAnswered()
        deadline_s = server.announce(NOW + 30)
        (sign,) = (await carried_out(azure.query(NOW), server)).signs
        assert (sign.deadline_s, sign.reason, sign.acknowledgeable) == (deadline_s, "azure: Preempt", True)
        assert len(server.asked("/metadata/instance")) == 1


async def test_an_acknowledgement_lets_the_event_begin() -> None:
    async with MetadataServer() as server:
        azure = Azure()
        server.announce(NOW + 30)
        (sign,) = (await carried_out(azure.query(NOW), server)).signs
        assert await carried_out(azure.acknowledge(sign.event_id), server) is None
        assert server.acknowledged == [sign.event_id]
        (sign,) = (await carried_out(azure.query(NOW), server)).signs
        assert (sign.deadline_s, sign.grace_s, sign.acknowledgeable) == (None, 0.0, False)
        server.faults.append(Fault(PATH, status=500))
        assert await carried_out(azure.acknowledge("e"), server) == f"POST {PATH}: status 500"


def test_an_empty_time_is_the_shortest_notice() -> None:
    """An event without a time has the shortest notice, or none where it has begun."""
    (scheduled,) = answer_to(event(NotBefore="")).signs
    assert (scheduled.deadline_s, scheduled.grace_s) == (None, 30.0)
    (started,) = answer_to(event(NotBefore="", EventStatus="Started")).signs
    assert (started.deadline_s, started.grace_s) == (None, 0.0)


def test_only_events_of_this_machine_count() -> None:
    """Azure reports each machine's events to the whole set; names are compared without case."""
    found = answer_to(event(EventId="1", Resources=["other"]), event(EventId="2", Resources=["VM"]))
    assert [sign.event_id for sign in found.signs] == ["2"]
    assert found.problem is None


def test_an_event_of_several_machines_is_not_acknowledged() -> None:
    """The other machines of the event may not be ready, so it is not acknowledged."""
    (sign,) = answer_to(event(Resources=["vm", "other"])).signs
    assert not sign.acknowledgeable


@pytest.mark.parametrize("kind", ["Freeze", "Reboot", "Redeploy", "Anything"])
def test_events_after_which_the_machine_is_there_are_no_signs(kind: str) -> None:
    assert answer_to(event(EventType=kind)) == MetadataAnswered()
    assert answer_to(event(EventType="Terminate")).signs


@pytest.mark.parametrize("bad", [None, 1, {}, event(EventId=1), event(Resources=None), event(EventType=[])])
def test_an_event_that_cannot_be_read_is_a_problem_and_hides_no_other(bad: Any) -> None:
    """The good one counts; none is withdrawn."""
    found = answer_to(bad, event(EventId="good"))
    assert [sign.event_id for sign in found.signs] == ["good"]
    assert found.problem == f"GET {PATH}: an event that cannot be read"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"Events": {}}', b"[" * 100_000])
def test_a_document_without_events_is_a_problem(body: bytes) -> None:
    """An empty list is one with events: none."""
    found, _ = answered(Azure("vm").query(NOW), [HttpAnswer(200, body)])
    assert (found.signs, found.problem) == ((), f"GET {PATH}: no list of events")


def test_without_the_machines_name_nobodys_events_are_taken() -> None:
    """Without the machine's name no event is taken, and the name is requested again the next time."""
    azure = Azure()
    found, _ = answered(azure.query(NOW), [HttpAnswer(500)])
    assert (found.signs, found.problem) == ((), "GET /metadata/instance/compute/name: status 500")
    body = json.dumps({"Events": [event()]}).encode()
    found, _ = answered(azure.query(NOW), [HttpAnswer(200, b"vm"), HttpAnswer(200, body)])
    assert len(found.signs) == 1


@pytest.mark.parametrize("body", [b'{"Events": []}', b"<html>", b"two words", b"", b"x" * 81])
def test_an_answer_that_is_no_name_is_not_kept_as_one(body: bytes) -> None:
    """An invalid machine name is a problem, since no event would match it; after a valid one events are requested."""
    found, _ = answered(Azure().query(NOW), [HttpAnswer(200, body)])
    assert (found.signs, found.problem) == ((), "GET /metadata/instance/compute/name: no name")
    _, requested = answered(Azure().query(NOW), [HttpAnswer(200, b"vm-1_2.x"), HttpAnswer(500)])
    assert len(requested) == 2
