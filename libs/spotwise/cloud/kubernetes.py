"""Kubernetes: taints of a node whose machine is being reclaimed.

A taint has no deadline: it is `timeAdded`, else the first sight, plus the configured grace period.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from spotwise.cloud.dialogue import Dialogue, HttpAnswer, HttpRequest, nothing_to_acknowledge, unix_s
from spotwise.core.spot.signs import MetadataAnswered, Sign

#: Keys of taints, and whether the taint is only a hint.
TAINTS = {
    "aws-node-termination-handler/spot-itn": False,
    "aws-node-termination-handler/rebalance-recommendation": True,
    "cloud.google.com/impending-node-termination": False,
    "karpenter.sh/disrupted": False,
}


class Kubernetes:
    """Dialogues with the Kubernetes API about one node.

    Args:
        node_name: the node.
        grace_s: time from a taint to the end of the node.
        read_token: returns the service account's token, which is rotated; `None`: it cannot be read.
    """

    name = "kubernetes"
    poll_s = 2.0

    def __init__(self, node_name: str, grace_s: float, read_token: Callable[[], str | None]) -> None:
        self._path = f"/api/v1/nodes/{quote(node_name, safe='')}"
        self._grace_s = grace_s
        self._read_token = read_token

    def detect(self) -> Dialogue[bool]:
        """Detect Kubernetes by reading the node."""
        _, answer = yield from self._get()
        return answer.status == 200 and _taints(answer) is not None

    def query(self, now: float) -> Dialogue[MetadataAnswered]:
        """Read the node's taints."""
        request, answer = yield from self._get()
        if answer.status != 200:
            return MetadataAnswered(problem=request.problem(answer.outcome))
        taints = _taints(answer)
        if taints is None:
            return MetadataAnswered(problem=request.problem("no node"))
        signs = {taint["key"]: self._sign(taint) for taint in taints if taint["key"] in TAINTS}
        return MetadataAnswered(tuple(signs.values()))

    def acknowledge(self, event_id: str) -> Dialogue[str | None]:
        """Report that Kubernetes accepts no acknowledgements."""
        return nothing_to_acknowledge(self.name)

    def _get(self) -> Dialogue[tuple[HttpRequest, HttpAnswer]]:
        request = HttpRequest("GET", self._path, {"Accept": "application/json"})
        token = self._read_token()
        if token is None:
            return request, HttpAnswer(None, failure="the service account's token cannot be read")
        request = HttpRequest("GET", self._path, {**request.headers, "Authorization": f"Bearer {token}"})
        return request, (yield request)

    def _sign(self, taint: dict[str, Any]) -> Sign:
        key, added_s = taint["key"], unix_s(taint.get("timeAdded"))
        deadline_s = None if added_s is None else added_s + self._grace_s
        return Sign(key, f"kubernetes: {key}", deadline_s, self._grace_s, is_hint=TAINTS[key])


def _taints(answer: HttpAnswer) -> list[dict[str, Any]] | None:
    """Return a node's taints; `None` if the answer is not a node."""
    document = answer.json_object()
    spec = None if document is None else document.get("spec", {})
    if document is None or document.get("kind") != "Node" or not isinstance(spec, dict):
        return None
    taints = spec.get("taints") or []
    if not isinstance(taints, list):
        return None
    return [taint for taint in taints if isinstance(taint, dict) and isinstance(taint.get("key"), str)]
