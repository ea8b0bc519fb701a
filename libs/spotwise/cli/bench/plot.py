"""Checks whether a plot can be written; matplotlib is an extra (`spotwise[bench]`)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from spotwise.cli.errors import CommandError, OptionError

_FORMATS = (".png", ".svg", ".pdf")


def require_plotting(path: Path, option: str = "--plot") -> None:
    """Check that an option's plot can be written, before the measurement starts.

    Raises:
        CommandError: matplotlib is missing.
        OptionError: the file's name has no format that matplotlib writes.
    """
    if path.suffix not in _FORMATS:
        raise OptionError(f"{option} {path}: give it a name that ends in {', '.join(_FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError(f"{option} needs matplotlib; install it with: pip install 'spotwise[bench]'")
