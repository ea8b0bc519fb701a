"""Starts the threads that compute for a worker with their niceness, and names the cores that are theirs."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ComputeThreads:
    """How threads run that compute.

    Attributes:
        niceness: added to theirs, as by nice(2); not to the event loop's.
        cores: each of them keeps to one of these, in their order; empty: they run on any core of the process, and borrow the
            time that other processes leave on cores that they share.
    """

    niceness: int = 0
    cores: tuple[int, ...] = ()

    def executor(self, name: str) -> ThreadPoolExecutor:
        """Return an executor of one thread, of this niceness."""
        # Threads that it starts inherit the niceness, so it is set first.
        return ThreadPoolExecutor(1, thread_name_prefix=name, initializer=_step_back, initargs=(self.niceness,))


def _step_back(niceness: int) -> None:
    """Add to the calling thread's niceness (on Linux, each thread has its own), and set its session's: where the kernel groups
    processes by session (sched_autogroup), a thread's niceness counts within its session only.
    """
    if niceness == 0:
        return
    thread_id = threading.get_native_id()
    # Added, since only root may lower a niceness.
    os.setpriority(os.PRIO_PROCESS, thread_id, os.getpriority(os.PRIO_PROCESS, thread_id) + niceness)
    is_session_leader = os.getsid(0) == os.getpid()
    if is_session_leader:
        with contextlib.suppress(OSError):  # a kernel that does not group, or not by session
            Path("/proc/self/autogroup").write_text(str(niceness))
