"""What the control plane's benchmark makes of what it saw."""

from __future__ import annotations

from array import array
from collections import Counter
from pathlib import Path

from spotwise.benchmarks.control_plane import _decision_rows, _open_rows, _replay_rows, _scale, _through_rows
from spotwise.benchmarks.stream_client import StreamOutcome
from spotwise.benchmarks.stream_load import StreamResult
from spotwise.mesh.replay.journal_replay import RecordedRole, Replay

MIB = 2**20


def outcome(ttft_s: float, tokens: int, tpot_s: float) -> StreamOutcome:
    """A request that was answered."""
    return StreamOutcome(0.0, ttft_s, ttft_s + tpot_s * (tokens - 1), tokens, None)


def test_a_token_costs_what_all_processes_used() -> None:
    """The cost per token is the CPU time of all processes, with a row for each that matters."""
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
    """A quick run has a tenth of the workers and streams, and at least one."""
    assert (_scale(200, 2000, 1, quick=True).workers, _scale(200, 2000, 1, quick=True).open_streams.streams) == (
        10,
        200,
    )
    assert (_scale(2, 3, 1, quick=True).workers, _scale(2, 3, 1, quick=True).through.streams) == (1, 12)
