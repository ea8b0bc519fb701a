"""Checks before the start that this machine has the GPU that an option names."""

from __future__ import annotations

import subprocess
import sys

from spotwise.cli.errors import OptionError

_TIMEOUT_S = 60.0
# In a process of its own: torch and a driver's context would stay in the supervisor's memory.
_COUNT = ("-m", "spotwise.engine.torch_devices")


def require_device(device: str) -> None:
    """Raise `OptionError` where torch does not see the CUDA device that `--device` names; `auto` and `cpu` need none."""
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return
    count = _cuda_devices()
    if count == 0:
        raise OptionError(
            f"--device {device}: torch sees no CUDA device here; use --device cpu, or install a torch with CUDA and a driver"
        )
    if index and int(index) >= count:
        raise OptionError(f"--device {device}: there are {count} CUDA devices here, cuda:0 to cuda:{count - 1}")


def _cuda_devices() -> int:
    try:
        counted = subprocess.run(
            [sys.executable, "-P", *_COUNT], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
        return int(counted.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0
