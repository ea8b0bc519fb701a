"""What the control plane's benchmark makes of what it saw."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotwise.benchmarks import crowd
from spotwise.benchmarks.control_plane import _decision_rows, _open_rows, _replay_rows, _scale, _through_rows
from spotwise.benchmarks.crowd import result_rows
from spotwise.benchmarks.stream_client import StreamOutcome
from spotwise.benchmarks.stream_load import StreamResult
from spotwise.cli.bench.load import StreamShape
from spotwise.cli.bench.servers import MeshEndpoint
from spotwise.cli.errors import CommandError
from spotwise.mesh.replay.journal_replay import RecordedRole, Replay

MIB = 2**20


def outcome(ttft_s: float, tokens: int, tpot_s: float) -> StreamOutcome:
    return StreamOutcome(0.0, ttft_s, ttft_s + tpot_s * (tokens - 1), tokens, None)


def test_a_token_costs_what_all_processes_used() -> None:
    result = StreamResult(
        [outcome(0.1, 50, 0.01), outcome(0.3, 50, 0.01)], 2.0, {"gateway-0": 0.004, "token-0": 0.001, "nats": 1e-6}
    )
    rows = {row.name: row for row in _through_rows(result)}
    cost = rows["through: CPU of the mesh per output token, us"]
    assert cost.ours == 50.01
    assert cost.holds
    assert rows["through: of it gateway-0, us"].ours == 40.0
    assert "through: of it nats, us" not in rows
    assert rows["through: output tokens/s"].ours == 50.0
    assert rows["through: TTFT p50, ms"].ours == 200.0


def test_open_streams_are_held_against_their_number_and_the_gateways_memory() -> None:
    scale = _scale(200, 1000, 1, quick=False)
    peak = Counter({"gateway-0": 400 * MIB, "scheduler-0": 60 * MIB, "nats": 20 * MIB})
    result = StreamResult([outcome(0.1, 11, 0.3)], 10.0, {"gateway-0": 1.1}, peak, most_open=850)
    rows = {row.name: row for row in _open_rows(scale, result, 0.4)}
    assert rows["open streams: workers"].ours == 200
    assert (rows["open streams: most at once"].ours, rows["open streams: most at once"].holds) == (850, False)
    assert (rows["open streams: gateway memory, MiB"].ours, rows["open streams: gateway memory, MiB"].holds) == (
        400,
        False,
    )
    assert rows["open streams: all memory, MiB"].ours == 480
    assert rows["open streams: cores that the mesh takes at rest"].ours == 0.4
    assert round(rows["open streams: TPOT p99, ms"].ours) == 300


def test_decisions_are_the_schedulers_own() -> None:
    """Workers' events are not among them; a difference is counted."""
    scheduler = RecordedRole(Path("s"), "SchedulerRole", "s", 1, {})
    worker = RecordedRole(Path("w"), "WorkerRole", "w", 1, {})
    seconds = array("d", [50e-6] * 98 + [300e-6] * 2)
    replays = [
        Replay(scheduler, 100, 200, None, {"SubmitRequest": seconds}),
        Replay(worker, 10, 20, None, {"SubmitRequest": array("d", [1.0])}),
    ]
    rows = {row.name: row for row in (*_decision_rows(replays), *_replay_rows(replays))}
    assert (round(rows["scheduler: an assignment, p50 us"].ours), rows["scheduler: an assignment, p50 us"].holds) == (
        50,
        True,
    )
    assert round(rows["scheduler: an assignment, p99 us"].ours) == 300
    assert "scheduler: a heartbeat, p50 us" not in rows
    assert rows["replay: commands"].ours == 220
    assert rows["replay: journals that differ"].ours == 0


def test_a_quick_one_is_a_tenth() -> None:
    assert (_scale(200, 2000, 1, quick=True).workers, _scale(200, 2000, 1, quick=True).open_streams.streams) == (
        10,
        200,
    )
    assert (_scale(2, 3, 1, quick=True).workers, _scale(2, 3, 1, quick=True).through.streams) == (1, 12)


def crowd_result(tpot_s: float, *gaps_s: float) -> StreamResult:
    outcomes = [StreamOutcome(0.0, 1.0, 1.0 + 10 * tpot_s, 11, None, gap_s) for gap_s in gaps_s]
    return StreamResult(outcomes, 10.0, {}, Counter({"gateway-0": 200 * MIB}), most_open=len(gaps_s))


def test_situations_are_compared_with_the_streams_alone_and_pauses_are_counted() -> None:
    """Ratios are of one round; a pause is far longer than a token of that load."""
    alone = [crowd_result(0.3, 0.4, 0.5), crowd_result(0.2, 0.4, 0.4)]
    slow = [crowd_result(0.33, 0.6, 0.6), crowd_result(0.24, 0.4, 0.4)]
    rows = {
        row.name: row
        for row in result_rows({"alone": alone, "slow clients": slow, "worker killed": [crowd_result(0.3, 0.4, 2.5)]})
    }
    assert round(rows["slow clients: TPOT p50, ms (beside: alone)"].ours) == 285
    assert rows["gateway memory, MiB"].holds
    assert rows["streams open at once"].ours == 2
    assert rows["worker killed: streams that paused"].ours == 1
    assert rows["worker killed: their pause, longest, ms"].ours == 2500.0
    assert rows["worker killed: streams that did not"].ours == 1


def test_a_situation_in_which_no_stream_ended_has_no_rows() -> None:
    names = [
        row.name
        for row in result_rows(
            {
                "alone": [crowd_result(0.3, 0.4)],
                "slow clients": [crowd_result(0.3)],
                "worker killed": [crowd_result(0.3)],
            }
        )
    ]
    assert any(name.startswith("alone") for name in names)
    assert not any(name.startswith(("slow clients", "worker killed")) for name in names)


def test_a_run_in_which_no_worker_was_killed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would say of a dead worker that it costs nothing."""

    async def too_few(
        endpoint: MeshEndpoint, shape: StreamShape, answered: object, now_open: Callable[[int], Any]
    ) -> StreamResult:
        now_open(94)
        await asyncio.sleep(0)
        return crowd_result(0.3, *[0.4] * 94)

    monkeypatch.setattr(crowd, "run_streams", too_few)
    endpoint = MeshEndpoint("http://localhost", "model", "redis://localhost", "crowd")
    with pytest.raises(CommandError, match="no worker was killed: 94 of 100 streams"):
        asyncio.run(crowd._run(endpoint, StreamShape(100, 1, 64, 80, 1), crowd._killed, lambda: None))
