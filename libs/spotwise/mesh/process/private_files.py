"""Files with secrets: only their owner may read them."""

from __future__ import annotations

import stat
from pathlib import Path


def require_private(path: Path) -> None:
    """Check that no other user can read or change a file; raises `ValueError` where one can, or there is no such file."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise ValueError(f"{path} may be read by other users (mode {mode:04o}); chmod 600 {path}")
