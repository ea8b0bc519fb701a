"""Some of many workers leave at once under open streams: what the streams lose, and what the planner takes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotwise.benchmarks.stream_load import StreamResult, run_streams
from spotwise.cli.bench.load import StreamShape
from spotwise.cli.bench.report import ReportRow, Target
from spotwise.cli.bench.servers import MeshEndpoint
from spotwise.cli.drain import send_notice
from spotwise.cli.mesh.running import running_state
from spotwise.mesh.redis.store import RedisStore
from spotwise.mesh.replay.journal_replay import Replay, find_journals, replay

#: One worker in so many gets a notice.
ONE_IN = 16
#: From the notices to the deadline.
NOTICE_S = 10.0
#: The notices come once this share of the streams is open.
_OPEN = 0.9


@dataclass(frozen=True, slots=True)
class WorkersLeft:
    """The result.

    Attributes:
        workers: workers that got a notice.
        moves: ended moves, by outcome; `given_back`: requests that were computed again elsewhere instead.
        replays: replays of the planner's journals.
    """

    result: StreamResult
    workers: int
    moves: Counter[str]
    given_back: int
    replays: list[Replay]

    def rows(self) -> list[ReportRow]:
        """Return the rows of the report."""
        moved = self.moves["moved"]
        seconds = max(self.result.seconds, 1e-9)
        failed = sum(self.result.failures.values())
        return [
            ReportRow("leaving: workers that get a notice at once", self.workers),
            ReportRow("leaving: streams that failed", failed, 1.0, Target(at_most=0.0)),
            ReportRow("leaving: requests that moved", moved),
            ReportRow(
                "leaving: moves that were refused or failed, or whose request ended first", self.moves.total() - moved
            ),
            ReportRow("leaving: requests given back", self.given_back),
            ReportRow("leaving: planner CPU, s", self.result.cpu_s.get("planner-0", 0.0)),
            ReportRow("leaving: planner, cores", self.result.cpu_s.get("planner-0", 0.0) / seconds),
        ]


async def run_leaving(
    endpoint: MeshEndpoint, shape: StreamShape, answered: Callable[[], Any]
) -> tuple[StreamResult, int]:
    """Run the streams, and give one worker in `ONE_IN` a notice once they are open; return the load's result and how many."""
    nats_url = running_state(endpoint.name).nats_url
    are_open = asyncio.Event()

    def now_open(count: int) -> None:
        if count >= _OPEN * shape.streams:
            are_open.set()

    async def notify(workers: Sequence[str]) -> None:
        await are_open.wait()
        await asyncio.gather(*(send_notice(nats_url, worker_id, NOTICE_S) for worker_id in workers))

    store = await RedisStore.connect(endpoint.redis_url)
    try:
        leaving = [member.id for member in await store.members() if member.pool is not None][::ONE_IN]
    finally:
        await store.close()
    notices = asyncio.create_task(notify(leaving))
    try:
        result = await run_streams(endpoint, shape, answered, now_open)
    finally:
        notices.cancel()
    return result, len(leaving)


def planned(folder: Path) -> tuple[Counter[str], int, list[Replay]]:
    """Read the planner's journals of a folder: moves by outcome, requests given back, and the replays."""
    moves: Counter[str] = Counter()
    given_back = 0
    journals = [journal for journal in find_journals(folder) if journal.role == "PlannerRole"]
    for journal in journals:
        for entry in journal.entries():
            if entry.event_type == "MoveEnded":
                moves[entry.event["outcome"]] += 1
            given_back += sum("GiveBackRequest" in command for command in entry.commands)
    return moves, given_back, [replay(journal) for journal in journals]
