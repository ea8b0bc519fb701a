#!/usr/bin/env python3
"""Draws the states of a request in docs/request-life.md, from the transition table in core/requests/request.py.

.venv/bin/python scripts/request_life.py           write the diagram
.venv/bin/python scripts/request_life.py --check   exit status 1 where the page shows another one
"""

from __future__ import annotations

import sys
from pathlib import Path

from spotwise.core.requests.request import TRANSITIONS, RequestEvent, RequestState, is_terminal

PAGE = Path(__file__).parent.parent / "docs" / "request-life.md"
BEGIN, END = "<!-- diagram -->\n", "<!-- end of diagram -->\n"

# Possible in every live state: an arrow each would hide the rest.
EVERYWHERE = (RequestEvent.ABORTED, RequestEvent.FAILED)
#: States in which a scheduler or worker first has a sequence.
FIRST_STATES = (RequestState.WAITING, RequestState.WAITING_FOR_KV)


def diagram() -> str:
    """The table as a Mermaid state diagram in a fenced block."""
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {state.name}" for state in FIRST_STATES]
    for state, moves in TRANSITIONS.items():
        if is_terminal(state):
            lines.append(f"    {state.name} --> [*]")
            continue
        lines += [
            f"    {state.name} --> {after.name}: {event.value}"
            for event, after in moves.items()
            if event not in EVERYWHERE
        ]
    return "\n".join(["```mermaid", *lines, "```", "", _everywhere(), ""])


def _everywhere() -> str:
    live = [state for state in TRANSITIONS if not is_terminal(state)]
    for event in EVERYWHERE:
        if any(event not in TRANSITIONS[state] for state in live):
            raise SystemExit(f"error: not every live state has {event.value}; draw it")
    ends = " and ".join(f"`{event.value}` to {TRANSITIONS[live[0]][event].name}" for event in EVERYWHERE)
    return f"Not drawn, because every live state ({', '.join(state.name for state in live)}) has them: {ends}."


def main() -> int:
    """Write or check; returns the exit status."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    wanted = f"{head}{BEGIN}{diagram()}{END}{tail}"
    if "--check" in sys.argv[1:]:
        if wanted != text:
            sys.stderr.write("error: the diagram is not what the table says; run scripts/request_life.py\n")
        return int(wanted != text)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
