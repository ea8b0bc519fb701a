"""A stream beside whatever else a test does to a gateway, read by a process of its own: the longest wait between two events,
and the longest wait for an answer that costs the gateway's event loop one turn.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from types import TracebackType
from urllib.parse import urlsplit

import httpx

from tests.live.mesh import MODEL, LiveMesh, wait_for

#: Every line on standard input ends a lap; what was read in it is printed.
_LAP = "lap\n"
#: So long a lap lasts at most where no event comes.
_LONGEST_LAP_S = 5.0
#: Pause between two questions for a turn.
_TURN_EVERY_S = 0.01


class SteadyStream:
    """One stream of a live mesh, read by a process of its own, since the test's work would delay a thread."""

    def __init__(self, mesh: LiveMesh, *, asks_for_turns: bool = False) -> None:
        command = [sys.executable, "-m", "tests.live.steady_stream", mesh.url, *(["turns"] if asks_for_turns else [])]
        self._reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> SteadyStream:
        seen = 0

        def runs() -> bool:
            nonlocal seen
            seen += self.lap().events
            return seen > 5

        wait_for(runs, lambda: "the steady stream's first events")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.kill()
        self._reader.communicate()

    def lap(self) -> Lap:
        """Return the events since the last lap, one at least: a hostile body may be refused between two events."""
        assert self._reader.stdin is not None
        assert self._reader.stdout is not None
        self._reader.stdin.write(_LAP)
        self._reader.stdin.flush()
        return Lap(**json.loads(self._reader.stdout.readline()))


class Lap:
    """Some seconds of the stream: its events, the longest wait for one (one that lasts included), and whether it ended;
    `longest_turn_s`: the longest wait for a turn of the gateway's event loop; `starved_s`: the longest that the reader itself
    waited for a processor.
    """

    def __init__(self, events: int, longest_gap_s: float, ended: bool, longest_turn_s: float, starved_s: float) -> None:
        self.events = events
        self.longest_gap_s = longest_gap_s
        self.ended = ended
        self.longest_turn_s = longest_turn_s
        self.starved_s = starved_s


def calm_lap(stream: SteadyStream) -> Lap:
    """Two seconds in which the test does nothing."""
    stream.lap()
    time.sleep(2)
    return stream.lap()


def calm_gap_s(stream: SteadyStream) -> float:
    """The longest gap of two seconds in which the test does nothing."""
    return calm_lap(stream).longest_gap_s


def bearable_s(calm_s: float) -> float:
    """The longest gap that an attack may cause: half a second, or more on a machine whose gaps are long without one."""
    return max(0.5, 4 * calm_s)


def bearable_turn_s(calm: Lap, lap: Lap) -> float:
    """The longest time without a turn of the loop that an attack may cause: a quarter of a second, or more as above, and what
    the reader waited for a processor, which the gateway does for each of its threads.
    """
    return max(0.25, 4 * calm.longest_turn_s) + 2 * lap.starved_s


def _read(url: str, *, asks_for_turns: bool) -> None:
    changed = threading.Condition()
    state = {"events": 0, "longest_gap_s": 0.0, "ended": False, "longest_turn_s": 0.0, "starved_s": 0.0}
    last_s = time.monotonic()
    asked_s: float | None = None  # of the turn that is waited for

    def note(ended: bool = False) -> None:
        nonlocal last_s
        with changed:
            now_s = time.monotonic()
            state["longest_gap_s"] = max(state["longest_gap_s"], now_s - last_s)
            last_s = now_s
            state["events"] += 1
            state["ended"] = ended
            changed.notify()

    def stream() -> None:
        body = {"model": MODEL, "prompt": "Go on", "max_tokens": 8000, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120.0) as response:
            for _ in response.iter_raw():
                note()
        note(ended=True)

    def turns() -> None:
        nonlocal asked_s
        where = urlsplit(url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=120.0)
        while True:
            began_s = asked_s = time.monotonic()
            connection.request("GET", "/version")
            connection.getresponse().read()
            with changed:
                state["longest_turn_s"] = max(state["longest_turn_s"], time.monotonic() - began_s)
                asked_s = None
            slept_s = time.monotonic()
            time.sleep(_TURN_EVERY_S)
            with changed:
                state["starved_s"] = max(state["starved_s"], time.monotonic() - slept_s - _TURN_EVERY_S)

    threading.Thread(target=stream, daemon=True).start()
    if asks_for_turns:
        threading.Thread(target=turns, daemon=True).start()
    for _ in sys.stdin:
        with changed:
            changed.wait_for(lambda: state["events"] or state["ended"], _LONGEST_LAP_S)
            waiting_s = 0.0 if state["ended"] else time.monotonic() - last_s
            turn_s = 0.0 if asked_s is None else time.monotonic() - asked_s
            said = {
                **state,
                "longest_gap_s": max(state["longest_gap_s"], waiting_s),
                "longest_turn_s": max(state["longest_turn_s"], turn_s),
            }
            state.update(events=0, longest_gap_s=0.0, longest_turn_s=0.0, starved_s=0.0)
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _read(sys.argv[1], asks_for_turns="turns" in sys.argv[2:])
