"""Streams of a group of which one process after the other is killed, or stands still: what its clients and the others see."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from spotwise.benchmarks.moved_streams import Stream, run_stream
from spotwise.cli.bench.completion import random_prompt
from spotwise.cli.bench.report import ReportRow, Target
from spotwise.cli.bench.servers import MeshEndpoint
from spotwise.cli.client.gateway_client import GatewayClient
from spotwise.cli.errors import CommandError
from spotwise.cli.launch.run_folder import run_folder
from spotwise.cli.mesh.status_table import MemberStatus, gather_status
from spotwise.core.messages.members import MemberKind

SIGNALS = {"kill -9": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}
#: A stopped process goes on after so long.
_STOPPED_S = 3.0
#: The process is lost once each stream has so many tokens.
_BEGUN = 8
_WHOLE_S = 120.0
_POLL_S = 0.1
#: Survivors are free within this time: a target.
_FREE_MS = 1000.0
_LEFT = re.compile(r"^(\S+Z) .*\bgroup_left\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fault:
    """One lost process.

    Attributes:
        free_s: from the signal until the last survivor had left the broken group; `None`: none of them logged it.
        whole_s: until the group was whole again.
        gap_s: the longest pause of a stream.
        lost, doubled, wrong: tokens, of all streams.
        blocks: blocks of KV that were still in use in the end, reservations among them; `sequences`: still in the engines.
    """

    stage: int
    shard: int
    signal_name: str
    free_s: float | None
    whole_s: float
    gap_s: float
    lost: int
    doubled: int
    wrong: int
    blocks: int
    sequences: int

    def as_dict(self) -> dict[str, object]:
        """Return it for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def prompts_of(streams: int, tokens: int, seed: int) -> list[list[int]]:
    """Return the streams' prompts, the same for every shape, and none of a load with that seed: it would be in caches."""
    rng = random.Random(f"faults {seed}")
    return [random_prompt(rng, tokens) for _ in range(streams)]


async def undisturbed(endpoint: MeshEndpoint, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
    """Return the tokens of all streams while nothing happens."""
    streams = [Stream(prompt) for prompt in prompts]
    async with GatewayClient(endpoint.url) as client:
        await asyncio.gather(*(run_stream(client, endpoint.model, stream, tokens) for stream in streams))
    return [stream.token_ids for stream in streams]


async def run_faults(
    endpoint: MeshEndpoint, prompts: Sequence[list[int]], expected: Sequence[list[int]], answered: Callable[[], object]
) -> list[Fault]:
    """Lose each position once by each signal, and return what came of it; raises `CommandError` where a stream fails, or the
    group is not whole again.
    """
    faults = []
    for position in sorted(await _places(endpoint)):
        for name in SIGNALS:
            faults.append(await _fault(endpoint, position, name, prompts, expected))
            answered()
    return faults


async def _fault(
    endpoint: MeshEndpoint,
    position: tuple[int, int],
    signal_name: str,
    prompts: Sequence[list[int]],
    expected: Sequence[list[int]],
) -> Fault:
    places = await _places(endpoint)
    victim = places[position]
    tokens = len(expected[0])
    streams = [Stream(prompt) for prompt in prompts]
    async with GatewayClient(endpoint.url) as client:
        tasks = [asyncio.create_task(run_stream(client, endpoint.model, stream, tokens)) for stream in streams]
        while not all(len(stream.token_ids) >= _BEGUN for stream in streams):
            if failed := [task for task in tasks if task.done()]:
                await asyncio.gather(*failed)
                raise CommandError("a stream ended before the process was lost; give it more --tokens")
            await asyncio.sleep(0.01)
        unix_s, lost_s = time.time(), time.perf_counter()
        os.kill(victim.member.pid, SIGNALS[signal_name])
        if signal_name == "SIGSTOP":
            asyncio.get_running_loop().call_later(_STOPPED_S, os.kill, victim.member.pid, signal.SIGCONT)
        await asyncio.sleep(_STOPPED_S)
        whole_s = await _whole(endpoint, len(places), lost_s)
        await asyncio.gather(*tasks)
    blocks, sequences = await _left_over(endpoint)
    survivors = [status.member.id for at, status in places.items() if at != position]
    left = [at_s - unix_s for name in survivors if (at_s := left_at(endpoint.name, name, unix_s)) is not None]
    got = [stream.token_ids for stream in streams]
    return Fault(
        *position,
        signal_name,
        max(left) if len(left) == len(survivors) else None,
        whole_s,
        max(stream.longest_gap_s(lost_s) for stream in streams),
        lost=sum(max(0, len(want) - len(have)) for have, want in zip(got, expected, strict=True)),
        doubled=sum(max(0, len(have) - len(want)) for have, want in zip(got, expected, strict=True)),
        wrong=sum(a != b for have, want in zip(got, expected, strict=True) for a, b in zip(have, want, strict=False)),
        blocks=blocks,
        sequences=sequences,
    )


async def _places(endpoint: MeshEndpoint) -> dict[tuple[int, int], MemberStatus]:
    """Return the members of the mesh's group by position, its worker at the first; not all while it is not whole."""
    statuses = sorted(await gather_status(endpoint.redis_url), key=lambda s: s.member.kind is not MemberKind.DEVICE)
    placed = [(status, status.member_now.place) for status in statuses if status.serving]
    epochs = {place.epoch for _, place in placed if place is not None}
    if len(epochs) != 1:
        return {}
    return {(place.stage, place.shard): status for status, place in placed if place is not None}


async def _whole(endpoint: MeshEndpoint, size: int, lost_s: float) -> float:
    """Wait until the group is whole, and return the seconds since the loss."""
    while len(await _places(endpoint)) < size:
        if time.perf_counter() - lost_s > _WHOLE_S:
            raise CommandError(f"the group is not whole {_WHOLE_S:g} s after it lost a process")
        await asyncio.sleep(_POLL_S)
    return time.perf_counter() - lost_s


async def _left_over(endpoint: MeshEndpoint) -> tuple[int, int]:
    """Return KV blocks in use and sequences in engines, as soon as they are 0, or after a while."""
    blocks = sequences = 0
    for _ in range(100):
        statuses = await gather_status(endpoint.redis_url)
        loads = [load for status in statuses if (load := status.member_now.load) is not None]
        blocks = sum(load.kv_blocks_used + load.waiting_for_kv for load in loads)
        sequences = sum(status.engine.engine_sequences for status in statuses if status.engine is not None)
        if not blocks and not sequences:
            break
        await asyncio.sleep(_POLL_S)
    return blocks, sequences


def left_at(mesh: str, member_id: str, since_unix_s: float) -> float | None:
    """Return when a member first left its group after that time, by its log."""
    text = run_folder(mesh).log_path(member_id).read_text()
    times = (datetime.fromisoformat(stamp).timestamp() for stamp in _LEFT.findall(text))
    return min((at_s for at_s in times if at_s >= since_unix_s), default=None)


def fault_rows(shape: str, faults: Sequence[Fault]) -> list[ReportRow]:
    """Return the rows of the report."""
    rows = []
    for fault in faults:
        where = f"{shape}: {fault.signal_name} of stage {fault.stage}, shard {fault.shard}"
        if fault.free_s is not None:
            target = Target(at_most=1.0)
            rows.append(ReportRow(f"{where}: survivors free after ms", 1000 * fault.free_s, _FREE_MS, target))
        rows.append(ReportRow(f"{where}: group whole after s", fault.whole_s))
        rows.append(ReportRow(f"{where}: longest pause of a stream, s", fault.gap_s))
    for name in ("lost", "doubled", "wrong"):
        rows.append(ReportRow(f"{shape}: tokens {name}, all faults", sum(getattr(fault, name) for fault in faults)))
    rows.append(ReportRow(f"{shape}: KV blocks and reservations left", sum(fault.blocks for fault in faults)))
    rows.append(ReportRow(f"{shape}: sequences left in engines", sum(fault.sequences for fault in faults)))
    return rows
