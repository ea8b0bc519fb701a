"""Cost profiles that a command is given."""

from __future__ import annotations

from pathlib import Path

from spotwise.cli.errors import OptionError
from spotwise.core.costs.cost_profile import CostProfile
from spotwise.files.cost_profile import read_cost_profile


def read_profile(path: Path, option: str) -> CostProfile:
    """Read a cost profile; raises `OptionError`, naming `option`, where it is unreadable or none."""
    try:
        return read_cost_profile(path)
    except (OSError, ValueError) as error:
        raise OptionError(f"{option} {path}: this is no cost profile of `spotwise profile`: {error}") from error
