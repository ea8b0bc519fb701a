"""Whatever a metadata service answers, a dialogue ends, with a reading or with a problem."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.cloud.aws import Aws
from spotwise.cloud.azure import Azure
from spotwise.cloud.dialogue import Cloud, Dialogue, HttpAnswer, HttpRequest, unix_s
from spotwise.cloud.gcp import Gcp
from spotwise.cloud.kubernetes import Kubernetes
from spotwise.core.spot.signs import ActiveSigns, MetadataAnswered

NOW = 1_795_359_600.0
CLOUDS: dict[str, Callable[[], Cloud]] = {
    "aws": Aws,
    "gcp": Gcp,
    "azure": Azure,
    "kubernetes": lambda: Kubernetes("node", 30.0, lambda: "token"),
}
#: Words that the clouds use, so that random documents come near to real ones.
WORDS = st.sampled_from(
    [
        *("action", "time", "noticeTime", "terminate", "2026-11-22T15:02:00Z", "TRUE", "FALSE", "vm", "Events"),
        *("EventId", "EventType", "Preempt", "Resources", "NotBefore", "Sun, 22 Nov 2026 15:00:30 GMT", "EventStatus"),
        *("Started", ""),
        *("kind", "Node", "spec", "taints", "key", "timeAdded", "karpenter.sh/disrupted", "0000-00-00T00:00:00Z", "-1"),
    ]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=8)
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=5
)
EVENT = st.fixed_dictionaries(
    {"EventId": WORDS, "EventType": WORDS, "Resources": st.lists(WORDS, max_size=2)},
    optional={"NotBefore": SCALARS, "EventStatus": SCALARS},
)
NODE = st.fixed_dictionaries(
    {
        "kind": st.just("Node"),
        "spec": st.fixed_dictionaries({"taints": st.lists(st.dictionaries(WORDS, SCALARS, max_size=4), max_size=3)}),
    }
)
ACTION = st.fixed_dictionaries({}, optional={"action": SCALARS, "time": SCALARS, "noticeTime": SCALARS})
BODIES = (
    st.binary(max_size=40)
    | WORDS.map(str.encode)
    | (DOCUMENTS | NODE | ACTION | st.fixed_dictionaries({"Events": st.lists(EVENT, max_size=3)})).map(
        lambda document: json.dumps(document).encode()
    )
)
STATUSES = st.sampled_from([None, 200, 200, 200, 200, 204, 301, 400, 401, 403, 404, 410, 429, 500, 503])
HEADERS = st.dictionaries(
    st.sampled_from(["etag", "metadata-flavor", "x-aws-ec2-metadata-token-ttl-seconds"]),
    st.text(max_size=6) | st.sampled_from(["Google", "0", "21600", "9" * 400, "²", "-1"]),
)
HTTP_ANSWERS = st.builds(HttpAnswer, STATUSES, BODIES, HEADERS, st.just("no connection"))
#: Of a service that serves them in turn.
SERVICES = st.lists(HTTP_ANSWERS, min_size=1, max_size=4)
#: Far more than any dialogue requests.
MOST_QUESTIONS = 12


def carried_out(dialogue: Dialogue[MetadataAnswered], answers: list[HttpAnswer]) -> MetadataAnswered:
    """Carry a dialogue out; each of its requests can be sent."""
    try:
        request = next(dialogue)
        for _, answer in zip(range(MOST_QUESTIONS), cycle(answers), strict=False):
            check_request(request)
            request = dialogue.send(answer)
    except StopIteration as end:
        found = end.value
        assert isinstance(found, MetadataAnswered)
        return found
    raise AssertionError("the dialogue does not end")


def check_request(request: HttpRequest) -> None:
    assert request.path.startswith("/")
    assert request.path.isascii()
    assert request.path.isprintable()
    assert " " not in request.path
    for name, value in request.headers.items():
        assert (name + value).isascii()
        assert (name + value).isprintable()


@pytest.mark.parametrize("name", CLOUDS)
@given(answers=st.lists(SERVICES, min_size=1, max_size=2))
@settings(max_examples=60)
def test_no_answer_is_more_than_a_problem(name: str, answers: list[list[HttpAnswer]]) -> None:
    """Dialogues end whatever the service answers, one after the other.

    A complete answer has finite deadlines and unique ids.
    """
    cloud: Cloud = CLOUDS[name]()
    queue_state = ActiveSigns()
    for each in answers:
        found = carried_out(cloud.query(NOW), each)
        assert found.problem is None or found.problem
        for sign in found.signs:
            assert sign.event_id is not None
            assert sign.deadline_s is None or math.isfinite(sign.deadline_s)
        queue_state.observe(found, NOW)


@pytest.mark.parametrize("name", CLOUDS)
@given(failing=st.sampled_from([None, 400, 403, 410, 429, 500, 503]), body=BODIES)
@settings(max_examples=25)
def test_a_service_that_fails_has_neither_signs_nor_silence(name: str, failing: int | None, body: bytes) -> None:
    """A failure is a problem, so that nothing is withdrawn by it."""
    cloud: Cloud = CLOUDS[name]()
    found = carried_out(cloud.query(NOW), [HttpAnswer(failing, body, failure="no connection")])
    assert found.signs == ()
    assert found.problem


@pytest.mark.parametrize("name", CLOUDS)
@given(answers=SERVICES)
@settings(max_examples=25)
def test_detection_ends(name: str, answers: list[HttpAnswer]) -> None:
    dialogue = CLOUDS[name]().detect()
    with pytest.raises(StopIteration) as end:
        next(dialogue)
        for _, answer in zip(range(MOST_QUESTIONS), cycle(answers), strict=False):
            dialogue.send(answer)
    assert end.value.value in (True, False)


@given(st.text(max_size=30) | SCALARS | WORDS)
@settings(max_examples=100)
def test_a_date_is_a_finite_time_or_none(text: object) -> None:
    at_s = unix_s(text)
    assert at_s is None or math.isfinite(at_s)
