"""From hand-offs to rows, and what `ucx_perftest` prints."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from spotwise.benchmarks.transfer import parse_lengths, require_mode, visible_rows
from spotwise.benchmarks.transfer_bandwidth import Bandwidth, overall_bandwidth
from spotwise.benchmarks.transfer_visible import HandOff, measure_hand_offs, medians
from spotwise.cli.bench.servers import MeshEndpoint
from spotwise.cli.errors import CommandError, OptionError
from spotwise.core.worker.kv.push_policy import ConfiguredPushMode
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.redis.store import RedisStore
from tests.unit.benchmarks.sse_gateway import gateway

PERFTEST = """\
+--------------+--------------+------------------------------+---------------------+-----------------------+
|              |              |       overhead (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
|    Stage     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
[thread 0]              1000    100.000   110.000   110.000     9000.00    9000.00        9000        9000
Final:                  2000    100.000   110.000   105.000     9000.00    9500.00        9000        9500
"""


def hand_off(tokens: int, mode: str, prefill_s: float, visible_s: float) -> HandOff:
    """Return a hand-off whose request took ten times its prompt."""
    return HandOff(tokens, mode, prefill_s, visible_s, 10 * prefill_s, 1000 * tokens, "tcp/lo")


def test_lengths_are_whole_and_positive() -> None:
    assert parse_lengths("512,128,512") == [128, 512]
    for text in ("", "0", "-1", "1.5", "many"):
        with pytest.raises(OptionError, match="--lengths"):
            parse_lengths(text)


def test_medians_are_those_of_one_length() -> None:
    measured = [
        hand_off(128, "serial", 0.1, 0.003),
        hand_off(128, "layerwise", 0.3, 0.001),
        hand_off(128, "serial", 0.2, 0.009),
        hand_off(512, "layerwise", 9.0, 9.0),
    ]
    found = medians(measured, 128)
    assert (found.mode, found.prefill_s, found.visible_s, found.e2e_s) == ("serial", 0.2, 0.003, 2.0)


def test_a_mode_that_has_no_effect_is_an_error() -> None:
    measured = [hand_off(128, "serial", 0.1, 0.01)]
    require_mode(ConfiguredPushMode.SERIAL, measured)
    require_mode(ConfiguredPushMode.AUTO, measured)
    with pytest.raises(CommandError, match="SPOTWISE_KV_PUSH=layerwise has no effect"):
        require_mode(ConfiguredPushMode.LAYERWISE, measured)


def test_targets_are_held_against_what_is_the_default() -> None:
    """A long prompt's hand-off may cost it 7 %, any request 2 %; a short prompt's only has a figure."""
    visible = {ConfiguredPushMode.SERIAL: 0.05, ConfiguredPushMode.LAYERWISE: 0.02, ConfiguredPushMode.AUTO: 0.03}
    found = {
        mode: [[hand_off(tokens, mode.value, 0.5, seconds) for tokens in (128, 512)]] * 2
        for mode, seconds in visible.items()
    }
    rows = {row.name: row for row in visible_rows(found, [128, 512])}
    long = rows["512 tokens, auto: KV visible beside prompt, ms"]
    assert (long.ours, long.reference, long.holds) == (pytest.approx(30.0), pytest.approx(500.0), True)
    assert long.ratio == pytest.approx(0.06)
    assert rows["128 tokens, auto: KV visible beside prompt, ms"].holds is None
    assert rows["512 tokens, serial: KV visible beside prompt, ms"].holds is None
    assert rows["128 tokens, auto: KV visible beside request, ms"].ratio == pytest.approx(0.006)
    whole = rows["512 tokens: prompt and hand-off, layerwise beside serial, ms"]
    assert (whole.ours, whole.reference) == (pytest.approx(520.0), pytest.approx(550.0))


def test_the_overall_bandwidth_is_read() -> None:
    assert overall_bandwidth(PERFTEST) == 9500.0 * 2**20
    with pytest.raises(CommandError, match="something else"):
        overall_bandwidth("Final: 3 words only")
    with pytest.raises(CommandError, match="something else"):
        overall_bandwidth("")


def test_transports_are_named_without_their_devices() -> None:
    assert Bandwidth(1.0, "tcp/lo,tcp/eth0").ucx_transports == "tcp"
    assert Bandwidth(1.0, "rc_mlx5/mlx5_0:1,cma/memory").ucx_transports == "cma,rc_mlx5"


class LostStore:
    """A store that was there when it was opened, and is not any more."""

    is_closed = False

    async def get_ledger(self, request_id: str) -> list[object]:
        raise MeshError("Redis: connection lost")

    async def close(self) -> None:
        self.is_closed = True


async def answered(writer: asyncio.StreamWriter) -> None:
    body = orjson.dumps({"id": "cmpl-1", "usage": {"completion_tokens": 2}})
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


async def test_a_store_that_is_away_is_a_command_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = LostStore()
    async with gateway(answered, answered) as (url, _):
        with pytest.raises(CommandError, match="the store's URL is wrong"):
            await measure_hand_offs(MeshEndpoint(url, "m", "nowhere", "mesh"), [8], 1, 2, "seed")

        async def connect(redis_url: str, tls: object = None) -> LostStore:
            return lost

        monkeypatch.setattr(RedisStore, "connect", connect)
        with pytest.raises(CommandError, match="connection lost"):
            await measure_hand_offs(MeshEndpoint(url, "m", "redis://store", "mesh"), [8], 1, 2, "seed")
    assert lost.is_closed
