"""`spotwise --version`."""

from __future__ import annotations

from importlib import metadata

from typer.testing import CliRunner

from spotwise.cli.__main__ import app


def test_the_installed_version_is_shown() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"spotwise {metadata.version('spotwise')}\n")
