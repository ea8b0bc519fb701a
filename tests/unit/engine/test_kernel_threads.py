"""Threads that compute together, and engines on several threads of one process."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from spotwise.engine.engine import Engine
from spotwise.engine.native import build
from spotwise.engine.native.library import Kernels
from spotwise.engine.sampling.fair_threads import FairThreads
from tests.unit.engine.tiny_models import Driver, load_engine, record

ENGINES = 3


def tokens_of(engine: Engine) -> list[int]:
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


#: Each piece is computed once: the sum of their numbers is known, and so is how many there were.
PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include "team.h"
int main(int, char** arguments) {
  spotwise::Team team(std::atoi(arguments[1]));
  const int64_t count = std::atoll(arguments[2]);
  std::atomic<int64_t> ran{0}, sum{0};
  for (int round = 0; round < 2; round++)
    team.each(count, [&](int64_t piece, int) { ran++; sum += piece; });
  std::printf("%lld %lld\\n", (long long)ran.load(), (long long)sum.load());
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shlex.split(os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or "")
    if not compiler:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("team")
    (folder / "team.cpp").write_text(PROGRAM)
    headers = Path(build.__file__).parent
    command = [*compiler, "-std=c++20", "-O1", "-pthread", f"-I{headers}", str(folder / "team.cpp"), "-o", "team"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "team"


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 1000, (1 << 19) + 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1000, (1 << 21) + 5])
def test_every_piece_is_computed_once_however_many_there_are(program: Path, threads: int, count: int) -> None:
    """An operation of 2^20 pieces, a prompt of 14,000 tokens on the largest models, ends as one of a thousand does."""
    done = subprocess.run(
        [str(program), str(threads), str(count)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [str(2 * count), str(count * (count - 1))]


WAIT_S = 30


def test_one_owner_never_has_all_threads() -> None:
    """However much it brought before."""
    threads, hold = FairThreads(2, "t"), threading.Event()
    crowd = [threads.submit("crowd", lambda: hold.wait(WAIT_S)) for _ in range(5)]
    assert threads.submit("other", lambda: "done").result(WAIT_S) == "done"
    assert not any(each.done() for each in crowd)
    hold.set()
    assert [each.result(WAIT_S) for each in crowd] == [True] * 5


def test_owners_take_turns() -> None:
    threads, hold, order = FairThreads(2, "t"), threading.Event(), list[str]()
    threads.submit("x", lambda: hold.wait(WAIT_S))
    first = threads.submit("y", lambda: hold.wait(WAIT_S))
    later = [threads.submit(owner, lambda owner=owner: order.append(owner)) for owner in ("a", "a", "a", "b", "b", "c")]  # type: ignore[misc]
    hold.set()
    first.result(WAIT_S)
    for each in later:
        each.result(WAIT_S)
    assert order.index("b") < 3 and order.index("c") < 4


def test_an_error_is_its_futures() -> None:
    """The thread goes on; what is cancelled before its turn does not run."""
    threads, hold = FairThreads(2, "t"), threading.Event()
    held = threads.submit("a", lambda: hold.wait(WAIT_S))
    cancelled, failing = threads.submit("a", lambda: 1 / 0), threads.submit("b", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failing.result(WAIT_S)
    assert threads.waiting("a") == 1 and cancelled.cancel()
    hold.set()
    assert held.result(WAIT_S) and threads.submit("a", lambda: 2).result(WAIT_S) == 2


def test_an_owner_leaves_places_to_others() -> None:
    """Half of all places where it is alone; what is cancelled frees its own at once, and keeps nothing."""
    threads, hold = FairThreads(2, "t", max_waiting=8), threading.Event()

    def fill(owner: str) -> list[Future[bool]]:
        futures = []
        while threads.has_room(owner):
            futures.append(threads.submit(owner, lambda: hold.wait(WAIT_S)))
        return futures

    crowd = fill("crowd")
    assert (len(crowd), threads.waiting("crowd")) == (5, 4)
    assert len(fill("other")) == 3 and threads.waiting("other") == 2
    assert len(fill("third")) == 1 and not threads.has_room("crowd")
    for each in crowd[1:]:
        assert each.cancel()
    assert threads.waiting("crowd") == 0 and threads.has_room("crowd")
    hold.set()
