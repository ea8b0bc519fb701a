"""Google Cloud: the metadata value `preempted`, by long polling.

After a plain request each further one names the known ETag and is answered when the value changes. Any failure returns to the
plain request. The value has no time: the notice is 30 s.
"""

from __future__ import annotations

from urllib.parse import quote

from spotwise.cloud.dialogue import Dialogue, HttpRequest, nothing_to_acknowledge
from spotwise.core.spot.signs import MetadataAnswered, Sign

PREEMPTED = "/computeMetadata/v1/instance/preempted"
INSTANCE_ID = "/computeMetadata/v1/instance/id"
FLAVOR_HEADER = "Metadata-Flavor"
FLAVOR = "Google"

#: Longest delay of an answer while the value does not change.
HELD_S = 30
GRACE_S = 30.0


class Gcp:
    """Dialogues with one instance's metadata server, and the last ETag of the value."""

    name = "gcp"
    poll_s = 1.0

    def __init__(self, held_s: int = HELD_S) -> None:
        self._held_s = held_s
        self._etag: str | None = None

    def detect(self) -> Dialogue[bool]:
        """Detect Google Cloud by a header in the answer to a request for the instance's id."""
        answer = yield HttpRequest("GET", INSTANCE_ID, {FLAVOR_HEADER: FLAVOR})
        return answer.status == 200 and answer.headers.get(FLAVOR_HEADER.lower()) == FLAVOR

    def query(self, now: float) -> Dialogue[MetadataAnswered]:
        """Read whether the instance is preempted, by long polling once the value is known."""
        request = self._question()
        self._etag = None
        answer = yield request
        value = answer.text()
        if answer.status != 200 or value not in ("TRUE", "FALSE"):
            what = "neither TRUE nor FALSE" if answer.status == 200 else answer.outcome
            return MetadataAnswered(problem=request.problem(what))
        self._etag = answer.headers.get("etag") or None
        sign = Sign("gcp-preempted", "gcp: preempted", grace_s=GRACE_S)
        return MetadataAnswered((sign,) if value == "TRUE" else ())

    def acknowledge(self, event_id: str) -> Dialogue[str | None]:
        """Report that Google Cloud accepts no acknowledgements."""
        return nothing_to_acknowledge(self.name)

    def _question(self) -> HttpRequest:
        if self._etag is None:
            return HttpRequest("GET", PREEMPTED, {FLAVOR_HEADER: FLAVOR})
        query = f"?wait_for_change=true&timeout_sec={self._held_s}&last_etag={quote(self._etag, safe='')}"
        return HttpRequest("GET", PREEMPTED + query, {FLAVOR_HEADER: FLAVOR}, held_s=float(self._held_s))
