"""Measures the time of one gather: processes that exchange, and do nothing else."""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import socket
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from spotwise.cli.errors import CommandError
from spotwise.core.messages.groups import GroupExchange
from spotwise.core.parallel.model_partition import column_bounds
from spotwise.engine.native.exchange import Exchange, MemoryExchange, SocketExchange
from spotwise.engine.native.library import StageFields, load_kernels
from spotwise.worker.groups.leading import SharedMemory

#: One token's activations of SmolLM2-135M in float32.
COLUMNS = 576
_ROUNDS = 7
_GATHERS = 2000
_START_S = 60.0

#: Connections with each other member, for data and for signs of life.
_Lines = dict[int, tuple[socket.socket, socket.socket]]


def gather_us(shards: int, through: GroupExchange) -> float:
    """Return the median microseconds of a gather of `COLUMNS` numbers among so many processes; raises `CommandError` where one
    does not answer.
    """
    memory = SharedMemory(shards)
    lines = _connections(shards) if through == GroupExchange.TCP else [None] * shards
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(shards)]
    processes = [
        context.Process(target=_member, args=(theirs, memory.path, lines[index], index, shards), daemon=True)
        for index, (_, theirs) in enumerate(pipes)
    ]
    try:
        for process in processes:
            process.start()
        for ours, _ in pipes:
            if not ours.poll(_START_S):
                raise CommandError("a process of the gather's measurement does not answer")
        times: list[float] = [value for ours, _ in pipes for value in ours.recv()]
        for ours, _ in pipes:
            ours.send(None)
        return statistics.median(times)
    finally:
        memory.close()
        for process in processes:
            process.join(1.0)
            process.kill()


def _connections(members: int) -> list[_Lines]:
    """Connect each two members over loopback."""
    lines: list[_Lines] = [{} for _ in range(members)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for ours, theirs in itertools.combinations(range(members), 2):
            dialled = [socket.create_connection(listener.getsockname()) for _ in range(2)]
            accepted = [listener.accept()[0] for _ in range(2)]
            lines[ours][theirs] = dialled[0], dialled[1]
            lines[theirs][ours] = accepted[0], accepted[1]
    return lines


def _member(pipe: Connection, path: str, lines: _Lines | None, index: int, shards: int) -> None:
    kernels = load_kernels()
    assert kernels is not None  # `SharedMemory` needs them
    exchange: Exchange
    if lines is None:
        exchange = MemoryExchange(kernels, Path(path), index, shards)
    else:
        exchange = SocketExchange(kernels, index, shards)
        for member, (data, pulse) in lines.items():
            exchange.connect(member, data, pulse)
    stage, matrix = StageFields(exchange.handle, 0, shards), torch.zeros(1, COLUMNS)
    bounds = (ctypes.c_int64 * (shards + 1))(*(4 * bound for bound in column_bounds(COLUMNS, shards)))
    # As the native layer calls it.
    arguments = ctypes.addressof(stage), matrix.data_ptr(), 1, 4 * COLUMNS, bounds, -1
    times = []
    for _ in range(_ROUNDS):
        began_s = time.perf_counter()
        for _ in range(_GATHERS):
            kernels.exchange_gather(*arguments)
        times.append(1e6 * (time.perf_counter() - began_s) / _GATHERS)
    pipe.send(times)
    pipe.recv()  # the others may not have read the last gather yet
    exchange.close()
