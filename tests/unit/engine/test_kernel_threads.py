"""Engines on several threads of one process compute at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spotwise.engine.engine import Engine
from spotwise.engine.native.library import Kernels
from tests.unit.engine.tiny_models import Driver, load_engine, record

ENGINES = 3


def tokens_of(engine: Engine) -> list[int]:
    """Tokens of a prompt of several chunks."""
    driver = Driver(engine, chunk_tokens=29)
    request = record("a", list(range(1, 90)))
    driver.add(request)
    driver.finish()
    engine.drop_sequence(request.sequence_id)
    return [token.token_id for token in driver.results[request.sequence_id]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_engines_of_several_threads_do_not_disturb_each_other(
    dtype: str, llama_folder: Path, best_kernels: Kernels
) -> None:
    """Each thread has helpers and intermediate results of its own; one to three threads a team."""
    expected = tokens_of(load_engine(llama_folder, dtype))
    engines = [load_engine(llama_folder, dtype) for _ in range(ENGINES)]
    together = threading.Barrier(ENGINES)

    def compute(index: int) -> list[list[int]]:
        best_kernels.set_threads(1 + index)
        together.wait()
        return [tokens_of(engines[index]) for _ in range(5)]

    with ThreadPoolExecutor(ENGINES) as pool:
        for results in pool.map(compute, range(ENGINES)):
            assert results == [expected] * 5


def test_an_engine_may_be_run_by_another_thread_than_the_one_that_loaded_it(
    llama_folder: Path, best_kernels: Kernels
) -> None:
    """A thread that has set no number of threads computes with as many as were set last."""
    engine = load_engine(llama_folder)
    expected = tokens_of(engine)
    best_kernels.set_threads(2)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(tokens_of, engine).result() == expected
