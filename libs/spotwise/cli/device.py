"""Whether this machine has the GPU that an option names, found out before anything is started."""

from __future__ import annotations

import subprocess
import sys

from spotwise.cli.errors import OptionError

_TIMEOUT_S = 60.0
# In a process of its own: torch would stay in the supervisor's memory, and a driver's context with it.
_COUNT = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


def require_device(device: str) -> None:
    """Check that torch sees the CUDA device that `--device` names; `auto` and `cpu` need none.

    Raises:
        OptionError: it does not.
    """
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
    """Return how many torch sees; none where it cannot be asked."""
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-c", _COUNT], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
        return int(asked.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0
