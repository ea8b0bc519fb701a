"""A deep stack for libraries that recurse as deep as their input is nested: a usual one overflows, which ends the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

StackResult = TypeVar("StackResult")

#: Of address space; memory is taken as far as the stack is used.
STACK_BYTES = 256 << 20
_starting = threading.Lock()


def with_deep_stack(work: Callable[[], StackResult]) -> StackResult:
    """Return what `work` returns in a thread of its own, of which nothing remains; raises what it raises."""
    future = Future[StackResult]()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # the edge of a thread: its caller takes it
            future.set_exception(error)
        else:
            future.set_result(result)

    thread = threading.Thread(target=run, name="deep")
    with _starting:  # the size is that of all threads that start
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return future.result()
