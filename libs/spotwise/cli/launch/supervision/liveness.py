"""Detects hung processes of a mesh: they run, and give no sign of life for `limit_s` while another process does.

A failed store or a paused supervisor (as when the machine slept) restarts the wait; silence of all processes at once is a
fault of the machine or the network, and no process is replaced for it. Signs of life are a pulse (`mesh/process/pulse.py`),
a registration, renewed every second and valid for four, an answer to a gRPC health check, served by the same event loop, and of
embedded servers an answer in their protocol.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

#: A sign of life: True, False, or None for unknown. It may take about a second.
Probe = Callable[[int], bool | None]

_PERIOD_S = 1.0
#: Between two looks further apart than this, seconds, the supervisor or the machine was paused: they prove no silence.
_MAX_GAP_S = 6.0
_THREADS = 8


@dataclass(slots=True)
class _Watched:
    pid: int
    seen_s: float


class SignsOfLife:
    """The time of each process's last sign of life; a silence of `limit_s` makes a process hung."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._watched: dict[str, _Watched] = {}
        self._looked_s: float | None = None
        self._any_alive = False

    def look(self, signs: Mapping[str, tuple[int, bool | None]], now_s: float) -> None:
        """Record one look at all processes: by id, the pid and the sign of life (None: unknown)."""
        paused = self._looked_s is not None and now_s - self._looked_s > _MAX_GAP_S
        self._looked_s = now_s
        self._any_alive = any(sign for _, sign in signs.values())
        kept: dict[str, _Watched] = {}
        for service_id, (pid, sign) in signs.items():
            known = self._watched.get(service_id)
            if known is None or known.pid != pid or sign is not False or paused:
                known = _Watched(pid, now_s)
            kept[service_id] = known
        self._watched = kept

    def hung(self, now_s: float) -> dict[str, int]:
        """Return the hung processes, as pids by id."""
        if not self._any_alive:
            return {}
        return {
            service_id: watched.pid
            for service_id, watched in self._watched.items()
            if now_s - watched.seen_s >= self._limit_s
        }


class LivenessWatch:
    """Probes processes once a second on a thread of its own, since a probe of a hung process takes as long as its time-out.

    Args:
        limit_s: silence after which a process counts as hung; None watches nothing.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._signs = None if limit_s is None else SignsOfLife(limit_s)
        self._targets: Mapping[str, tuple[int, Probe]] = {}
        self._hung: Mapping[str, int] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)

    def __enter__(self) -> Self:
        if self._signs is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=3.0)

    def watch(self, targets: Mapping[str, tuple[int, Probe]]) -> None:
        """Replace the processes under watch: by id, pid and probe."""
        self._targets = targets

    def hung(self) -> Mapping[str, int]:
        """Return the hung processes at the last look, as pids by id."""
        return self._hung

    def _run(self) -> None:
        assert self._signs is not None
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="liveness") as pool:
            while not self._end.wait(_PERIOD_S):
                targets = self._targets
                found = pool.map(lambda target: _probed(*target), targets.values())
                signs = {name: (pid, sign) for (name, (pid, _)), sign in zip(targets.items(), found, strict=True)}
                self._signs.look(signs, time.monotonic())
                self._hung = self._signs.hung(time.monotonic())


def _probed(pid: int, probe: Probe) -> bool | None:
    try:
        return probe(pid)
    except Exception:
        # The edge of this thread: an unforeseen exception in a probe proves nothing about the process.
        return None
