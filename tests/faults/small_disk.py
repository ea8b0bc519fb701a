"""A file system of a few megabytes for a mesh's files, which a test fills."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_MEGABYTES = 32
_BLOCK = bytes(1 << 16)


def why_impossible() -> str | None:
    """Return why no file system can be mounted here; `None` where one can."""
    return None if os.geteuid() == 0 else "needs root"


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount the file system at a folder, for the length of a block.

    Raises:
        subprocess.CalledProcessError: it cannot be mounted.
    """
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_MEGABYTES}m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_for(folder: Path, seconds: float) -> None:
    """Leave no byte of the file system free, for so long."""
    filling = folder / "filling"
    ends_s = time.monotonic() + seconds
    try:
        with filling.open("ab", buffering=0) as file:
            while time.monotonic() < ends_s:
                try:
                    while True:
                        file.write(_BLOCK)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                time.sleep(0.05)
    finally:
        filling.unlink()
