"""AWS: spot signs from the instance metadata service (IMDSv2).

Status 404 means no sign. The instance action is the interruption notice, two minutes ahead; a rebalance recommendation may
precede it, as a hint.
"""

from __future__ import annotations

from spotwise.cloud.dialogue import Dialogue, HttpAnswer, HttpRequest, nothing_to_acknowledge, unix_s
from spotwise.core.spot.signs import MetadataAnswered, Sign

TOKEN = "/latest/api/token"
INSTANCE_ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER = "X-aws-ec2-metadata-token"

#: The longest token lifetime that the service grants.
TOKEN_TTL_S = 21_600
#: A token is renewed after this share of its lifetime.
_RENEWED_AFTER = 0.8
_LONGEST_TTL_DIGITS = 9


class Aws:
    """Dialogues with one instance's metadata service, and the session token that they share."""

    name = "aws"
    poll_s = 2.0

    def __init__(self) -> None:
        self._token: str | None = None
        self._renew_at_s = 0.0

    def detect(self) -> Dialogue[bool]:
        """Detect AWS by requesting a session token, which no other cloud offers."""
        return (yield from self._renew(0.0)) is None

    def query(self, now: float) -> Dialogue[MetadataAnswered]:
        """Read the instance action and the rebalance recommendation."""
        signs: list[Sign] = []
        problems: list[str] = []
        for path, read in ((INSTANCE_ACTION, _action), (REBALANCE, _rebalance)):
            request, answer = yield from self._get(path, now)
            if answer.status == 404:
                continue
            sign = read(answer) if answer.status == 200 else None
            if sign is not None:
                signs.append(sign)
            else:
                problems.append(
                    request.problem("a document that cannot be read" if answer.status == 200 else answer.outcome)
                )
        return MetadataAnswered(tuple(signs), "; ".join(dict.fromkeys(problems)) or None)

    def acknowledge(self, event_id: str) -> Dialogue[str | None]:
        """Report that AWS accepts no acknowledgements."""
        return nothing_to_acknowledge(self.name)

    def _get(self, path: str, now: float) -> Dialogue[tuple[HttpRequest, HttpAnswer]]:
        """Return the last request and its answer; both are the token's where no token was granted."""
        if self._token is None or now >= self._renew_at_s:
            refused = yield from self._renew(now)
            if refused is not None:
                return refused
        request = HttpRequest("GET", path, {TOKEN_HEADER: self._token or ""})
        answer = yield request
        if answer.status == 401:
            refused = yield from self._renew(now)
            if refused is not None:
                return refused
            request = HttpRequest("GET", path, {TOKEN_HEADER: self._token or ""})
            answer = yield request
        return request, answer

    def _renew(self, now: float) -> Dialogue[tuple[HttpRequest, HttpAnswer] | None]:
        """Request a new token; return the request and its failed answer where none was granted."""
        self._token = None
        request = HttpRequest("PUT", TOKEN, {TTL_HEADER: str(TOKEN_TTL_S)})
        answer = yield request
        token = answer.text() if answer.status == 200 else None
        if token is None:
            # The status is dropped, since the caller would read a 404 as "no sign".
            what = "no token" if answer.status == 200 else answer.outcome
            return request, HttpAnswer(None, failure=what)
        self._token = token
        self._renew_at_s = now + _ttl_s(answer) * _RENEWED_AFTER
        return None


def _ttl_s(answer: HttpAnswer) -> float:
    given = answer.headers.get(TTL_HEADER.lower(), "")
    if given.isascii() and given.isdigit() and len(given) <= _LONGEST_TTL_DIGITS:
        return min(float(given), float(TOKEN_TTL_S))
    return float(TOKEN_TTL_S)


def _action(answer: HttpAnswer) -> Sign | None:
    document = answer.json_object()
    action = None if document is None else document.get("action")
    if document is None or not isinstance(action, str):
        return None
    # The action is certain even if its time cannot be read: then the shortest notice applies.
    return Sign("aws-instance-action", f"aws: {action}", unix_s(document.get("time")))


def _rebalance(answer: HttpAnswer) -> Sign | None:
    document = answer.json_object()
    if document is None or "noticeTime" not in document:
        return None
    return Sign("aws-rebalance", "aws: rebalance recommendation", is_hint=True)
