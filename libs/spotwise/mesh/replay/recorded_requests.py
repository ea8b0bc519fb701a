"""The completed requests of a recorded run, from the gateways' journals: arrival, sizes, TTFT, TPOT and E2E. A request that was
still open at the journal's end, or got no token, is left out.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from spotwise.core.gateway.role import GatewayRole
from spotwise.mesh.replay.journal_replay import RecordedRole

#: The first three are the Azure LLM inference traces', so that the file is a trace, too.
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens", "TtftS", "TpotS", "E2eS")


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A completed request (each of a request's choices is one).

    Attributes:
        arrived_s: at the gateway, Unix seconds.
        tpot_s: mean seconds per token after the first; `None` for an output of one token.
    """

    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    tpot_s: float | None
    e2e_s: float


def recorded_requests(journals: Iterable[RecordedRole]) -> list[RecordedRequest]:
    """Return the completed requests of all gateways in the journals, by arrival; raises `JournalError` for a damaged line."""
    found = [request for journal in journals if journal.role == GatewayRole.__name__ for request in _of(journal)]
    return sorted(found, key=lambda request: request.arrived_s)


def write_requests(requests: Iterable[RecordedRequest], path: Path) -> None:
    """Write requests as a trace with latencies; raises `OSError` where the file cannot be written."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for request in requests:
            at = datetime.fromtimestamp(request.arrived_s, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
            times = (request.ttft_s, request.tpot_s, request.e2e_s)
            seconds = ("" if time_s is None else f"{time_s:.6f}" for time_s in times)
            rows.writerow((at, request.prompt_tokens, request.output_tokens, *seconds))


def _of(journal: RecordedRole) -> Iterable[RecordedRequest]:
    arrivals_s: dict[str, float] = {}
    for entry in journal.entries():
        if entry.event_type == "RequestReceived":
            arrivals_s[entry.event["choice_id"]] = entry.now
        for command in entry.commands:
            if command[0] != "RecordLedger" or command[1]["entry"]["stage"] != "completed":
                continue
            choice_id, facts = command[1]["entry"]["choice_id"], dict(command[1]["entry"]["facts"])
            arrived_s = arrivals_s.pop(choice_id, None)
            if arrived_s is not None and "ttft_s" in facts:
                yield RecordedRequest(
                    arrived_s,
                    facts["prompt_tokens"],
                    facts["output_tokens"],
                    facts["ttft_s"],
                    facts.get("tpot_s"),
                    facts["e2e_s"],
                )
