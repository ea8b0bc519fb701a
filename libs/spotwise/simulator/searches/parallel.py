"""Runs many searches over the processors. Each search resumes when its requested runs are done; results do not depend on the
number of processes, and searches that request the same run share it. A run that is alone needs no other process."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Generic, Self, TypeVar

from spotwise.simulator.compiled.loading import is_compiled, use_compiled

_Key = TypeVar("_Key", bound=Hashable)
_Case = TypeVar("_Case", bound=Hashable)
_Run = TypeVar("_Run")
_Result = TypeVar("_Result")


def drive(
    searches: Mapping[_Key, Generator[Sequence[_Case], Sequence[_Run], _Result]],
    jobs: int,
    run: Callable[[_Case], _Run],
    finished: Callable[[_Run], None] = lambda run: None,
) -> dict[_Key, _Result]:
    """Run searches to their ends; returns results by the searches' names, in their order.

    Args:
        jobs: processes; 1 runs everything in this one.
        run: simulates a case, in another process unless `jobs` is 1; must be picklable.
        finished: called after each run, in this process.

    Raises:
        Exception: an error of a run or a search; the other processes are stopped first.
    """
    if jobs == 1:
        return _drive_here(searches, finished, run)
    with _Processes(jobs) as processes:
        return _Driver(searches, processes, finished, run).results()


def _drive_here(
    searches: Mapping[_Key, Generator[Sequence[_Case], Sequence[_Run], _Result]],
    finished: Callable[[_Run], None],
    run: Callable[[_Case], _Run],
) -> dict[_Key, _Result]:
    known: dict[_Case, _Run] = {}
    results: dict[_Key, _Result] = {}
    for key, search in searches.items():
        answer: Sequence[_Run] | None = None
        while True:
            try:
                cases = search.send(answer)  # type: ignore[arg-type]  # the first answer is None
            except StopIteration as end:
                results[key] = end.value
                break
            for case in cases:
                if case not in known:
                    known[case] = run(case)
                    finished(known[case])
            answer = [known[case] for case in cases]
    return results


class _Processes:
    """Processes that start when they are first needed; they are not waited for where an error ends it all."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=error is None, cancel_futures=error is not None)

    def submit(self, run: Callable[[_Case], _Run], case: _Case) -> Future[_Run]:
        """Run a case in one of them."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._jobs,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=use_compiled if is_compiled() else None,
            )
        return self._pool.submit(run, case)


class _Driver(Generic[_Key, _Case, _Run, _Result]):
    def __init__(
        self,
        searches: Mapping[_Key, Generator[Sequence[_Case], Sequence[_Run], _Result]],
        processes: _Processes,
        finished: Callable[[_Run], None],
        run: Callable[[_Case], _Run],
    ) -> None:
        self._searches = searches
        self._processes = processes
        self._finished = finished
        self._run = run
        self._runs: dict[_Case, Future[_Run]] = {}
        self._open: dict[Future[_Run], None] = {}  # in the order of their requests
        self._asked: list[_Case] = []  # of these, not begun
        self._awaited: dict[_Key, list[Future[_Run]]] = {}
        self._results: dict[_Key, _Result] = {}

    def results(self) -> dict[_Key, _Result]:
        for key in self._searches:
            self._resume(key, None)
        while self._awaited:
            self._begin_asked()
            wait(self._open, return_when=FIRST_COMPLETED)
            for run in [run for run in self._open if run.done()]:
                del self._open[run]
                self._finished(run.result())
            for key, runs in list(self._awaited.items()):
                if not any(run in self._open for run in runs):
                    del self._awaited[key]
                    self._resume(key, [run.result() for run in runs])
        return {key: self._results[key] for key in self._searches}

    def _resume(self, key: _Key, answer: Sequence[_Run] | None) -> None:
        try:
            cases = self._searches[key].send(answer)  # type: ignore[arg-type]  # the first answer is None
        except StopIteration as end:
            self._results[key] = end.value
            return
        for case in cases:
            if case not in self._runs:
                self._runs[case] = Future()
                self._asked.append(case)
        self._awaited[key] = [self._runs[case] for case in cases]

    def _begin_asked(self) -> None:
        asked, self._asked = self._asked, []
        is_alone = len(asked) == 1 and not self._open
        for case in asked:
            answer = self._runs[case]
            self._open[answer] = None
            if is_alone:
                answer.set_result(self._run(case))
            else:
                self._processes.submit(self._run, case).add_done_callback(functools.partial(_pass_on, answer))


def _pass_on(answer: Future[_Run], run: Future[_Run]) -> None:
    """Give what a process has answered to those who wait."""
    if run.cancelled():
        answer.cancel()
    elif (error := run.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(run.result())
