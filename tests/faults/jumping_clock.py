"""Wall clocks of single processes that jump, by a library that is preloaded into every process of a mesh."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".cpp")
_COMPILER = os.environ.get("CXX", "g++")


def why_impossible() -> str | None:
    """Return why no clock can jump here; `None` where it can."""
    return None if shutil.which(_COMPILER) else f"needs {_COMPILER}"


class JumpingClocks:
    """The clocks of processes that are started with `env`."""

    def __init__(self, folder: Path) -> None:
        library = folder / "jumping_clock.so"
        options = (
            "-std=c++17",
            "-O1",
            "-shared",
            "-fPIC",
            f'-DCLOCKS="{folder}"',
            "-o",
            str(library),
            str(_SOURCE),
            "-ldl",
        )
        subprocess.run([_COMPILER, *options], check=True)
        self._folder = folder
        self.env = {"LD_PRELOAD": str(library)}

    def can_jump(self, pid: int) -> bool:
        """Tell whether a process reads its clock here; one that is linked statically does not."""
        return self._offset_of(pid).exists()

    def jump(self, offset_s: int, for_s: float) -> Callable[[int], None]:
        """Return what sets a process's clock forward, or back, and right again after `for_s`."""

        def jumped(pid: int) -> None:
            self._set(pid, offset_s)
            try:
                time.sleep(for_s)
            finally:
                self._set(pid, 0)

        return jumped

    def _set(self, pid: int, offset_s: int) -> None:
        with self._offset_of(pid).open("r+b") as file:
            file.write(struct.pack("l", offset_s))

    def _offset_of(self, pid: int) -> Path:
        return self._folder / str(pid)
