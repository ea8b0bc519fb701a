"""Tunes how a service collects garbage, and what it keeps of freed memory."""

from __future__ import annotations

import ctypes
import gc

#: Net allocations before a collection of generation 0; Python's default of 700 is every few messages.
_COLLECT_AFTER = 20_000
#: The same, where 20,000 objects that hold others take too long.
_COLLECT_LITTLE_AFTER = 5_000

#: glibc's M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_ARENA_MAX; by default the first two grow with the pieces that are freed, up
#: to 32 and 64 MiB, and the third is 8 for each core.
_MALLOC_OPTIONS = ((-3, 1 << 20), (-1, 4 << 20), (-8, 2))


def collect_rarely() -> None:
    """Collect cycles rarely: there are few, and a full collection takes a scheduler of 1,000 workers tens of milliseconds."""
    gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])


def collect_little_at_once() -> None:
    """Bound the time that a collection takes where one message may bring a hundred thousand objects: what is there now is never
    looked at again, and of what follows little at once.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_LITTLE_AFTER, *gc.get_threshold()[1:])


def keep_little_freed_memory() -> None:
    """Have the C library (glibc) return large pieces as they are freed, and bound the pools of memory that threads have.

    It would keep what bodies took, scattered, for each thread that read one. Before threads start.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        for option, value in _MALLOC_OPTIONS:
            set_option(option, value)


def give_back_freed_memory() -> None:
    """Return freed memory to the operating system, which the C library would keep."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # it is glibc
        trim(0)


def leave_to_the_system() -> None:
    """Exempt all objects from collection as the process ends: the interpreter's last ones take a worker (torch) a second."""
    gc.freeze()
