"""What one gather takes: processes that share memory and do nothing else."""

from __future__ import annotations

import ctypes
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from spotwise.cli.errors import CommandError
from spotwise.core.parallel.model_partition import column_bounds
from spotwise.engine.exchange import MemoryExchange
from spotwise.engine.native.library import StageFields, load_kernels
from spotwise.worker.groups.exchange_choice import SharedMemory

#: One token's activations of SmolLM2-135M in float32.
COLUMNS = 576
_ROUNDS = 7
_GATHERS = 2000
_START_S = 60.0


def gather_us(shards: int) -> float:
    """Return the median microseconds of a gather of `COLUMNS` numbers among so many processes; raises `CommandError` where one
    does not answer.
    """
    memory = SharedMemory(shards)
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(shards)]
    processes = [
        context.Process(target=_member, args=(theirs, memory.path, index, shards), daemon=True)
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


def _member(pipe: Connection, path: str, index: int, shards: int) -> None:
    kernels = load_kernels()
    assert kernels is not None  # `SharedMemory` needs them
    exchange = MemoryExchange(kernels, Path(path), index, shards)
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
