"""Files of `spotwise profile` that a command is given."""

from __future__ import annotations

from pathlib import Path

from spotwise.cli.errors import OptionError
from spotwise.core.cost_profile import CostProfile
from spotwise.wire.cost_profile import profile_from_json


def read_profile(path: Path, option: str) -> CostProfile:
    """Read a file of `spotwise profile`; raises `OptionError`, naming `option`, where it is unreadable or no profile."""
    try:
        return profile_from_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise OptionError(f"{option} {path}: this is no cost profile of `spotwise profile`: {error}") from error
