"""Azure: scheduled events of a virtual machine.

Preempt and Terminate events end the machine if its name is among their resources. `NotBefore` is the deadline; if empty, the
event has started, or the 30 s notice of a preemption applies. An acknowledgement starts an event at once for all its resources,
so it is offered only where the event names this machine alone.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from spotwise.cloud.dialogue import Dialogue, HttpAnswer, HttpRequest, unix_s
from spotwise.core.spot.signs import MetadataAnswered, Sign

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
VM_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
HEADERS = {"Metadata": "true"}
GRACE_S = 30.0
_LEAVING = ("Preempt", "Terminate")
_STARTED = "Started"
#: Valid machine names: an error page must not be cached as a name.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")


class Azure:
    """Dialogues with one virtual machine's metadata service.

    Args:
        vm_name: the machine's name in the resources of events; `None`: read it from the instance metadata.
    """

    name = "azure"
    poll_s = 1.0

    def __init__(self, vm_name: str | None = None) -> None:
        self._vm_name = vm_name

    def detect(self) -> Dialogue[bool]:
        """Detect Azure by requesting the machine's name, which no other cloud offers at this path."""
        answer = yield HttpRequest("GET", VM_NAME, HEADERS)
        return _name(answer) is not None

    def query(self, now: float) -> Dialogue[MetadataAnswered]:
        """Read the scheduled events that concern this machine."""
        if self._vm_name is None:
            request = HttpRequest("GET", VM_NAME, HEADERS)
            answer = yield request
            self._vm_name = _name(answer)
            if self._vm_name is None:
                what = "no name" if answer.status == 200 else answer.outcome
                return MetadataAnswered(problem=request.problem(what))
        request = HttpRequest("GET", EVENTS, HEADERS)
        answer = yield request
        if answer.status != 200:
            return MetadataAnswered(problem=request.problem(answer.outcome))
        document = answer.json_object()
        events = None if document is None else document.get("Events")
        if not isinstance(events, list):
            return MetadataAnswered(problem=request.problem("no list of events"))
        readable = [event for event in events if _is_event(event)]
        signs = tuple(
            _sign(event, self._vm_name)
            for event in readable
            if event["EventType"] in _LEAVING and _names(event, self._vm_name)
        )
        problem = None if len(readable) == len(events) else request.problem("an event that cannot be read")
        return MetadataAnswered(signs, problem)

    def acknowledge(self, event_id: str) -> Dialogue[str | None]:
        """Acknowledge an event, which starts it."""
        body = orjson.dumps({"StartRequests": [{"EventId": event_id}]})
        request = HttpRequest("POST", EVENTS, {**HEADERS, "Content-Type": "application/json"}, body)
        answer = yield request
        return None if answer.status == 200 else request.problem(answer.outcome)


def _name(answer: HttpAnswer) -> str | None:
    text = answer.text() if answer.status == 200 else None
    return text if text is not None and _NAME.fullmatch(text) else None


def _is_event(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and isinstance(event.get("EventId"), str)
        and isinstance(event.get("EventType"), str)
        and isinstance(event.get("Resources"), list)
    )


def _names(event: dict[str, Any], vm_name: str) -> bool:
    return any(_is_same(resource, vm_name) for resource in event["Resources"])


def _is_same(resource: Any, vm_name: str) -> bool:
    """Compare machine names, which are case-insensitive."""
    return isinstance(resource, str) and resource.casefold() == vm_name.casefold()


def _sign(event: dict[str, Any], vm_name: str) -> Sign:
    started = event.get("EventStatus") == _STARTED
    return Sign(
        event["EventId"],
        f"azure: {event['EventType']}",
        unix_s(event.get("NotBefore")),
        grace_s=0.0 if started else GRACE_S,
        acknowledgeable=not started and all(_is_same(resource, vm_name) for resource in event["Resources"]),
    )
