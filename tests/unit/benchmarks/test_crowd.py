"""What the crowd's benchmark makes of its streams."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from spotwise.benchmarks import crowd
from spotwise.benchmarks.crowd import result_rows
from spotwise.benchmarks.stream_client import StreamOutcome
from spotwise.benchmarks.stream_load import StreamResult
from spotwise.cli.bench.load import StreamShape
from spotwise.cli.bench.servers import MeshEndpoint
from spotwise.cli.errors import CommandError

MIB = 2**20


def result(tpot_s: float, *gaps_s: float) -> StreamResult:
    """A load whose streams had these longest gaps."""
    outcomes = [StreamOutcome(0.0, 1.0, 1.0 + 10 * tpot_s, 11, None, gap_s) for gap_s in gaps_s]
    return StreamResult(outcomes, 10.0, {}, Counter({"gateway-0": 200 * MIB}), most_open=len(gaps_s))


def test_situations_are_compared_with_the_streams_alone_and_pauses_are_counted() -> None:
    """Ratios are of one round; a pause is far longer than a token of that load."""
    alone = [result(0.3, 0.4, 0.5), result(0.2, 0.4, 0.4)]
    slow = [result(0.33, 0.6, 0.6), result(0.24, 0.4, 0.4)]
    rows = {
        row.name: row
        for row in result_rows({"alone": alone, "slow clients": slow, "worker killed": [result(0.3, 0.4, 2.5)]})
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
            {"alone": [result(0.3, 0.4)], "slow clients": [result(0.3)], "worker killed": [result(0.3)]}
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
        return result(0.3, *[0.4] * 94)

    monkeypatch.setattr(crowd, "run_streams", too_few)
    endpoint = MeshEndpoint("http://localhost", "model", "redis://localhost", "crowd")
    with pytest.raises(CommandError, match="no worker was killed: 94 of 100 streams"):
        asyncio.run(crowd._run(endpoint, StreamShape(100, 1, 64, 80, 1), crowd._killed, lambda: None))
