"""`spotwise` as a program: its version, and that it prints its own output only."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from typer.testing import CliRunner

from spotwise.cli.__main__ import app


def test_the_installed_version_is_shown() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"spotwise {metadata.version('spotwise')}\n")


def test_no_log_line_of_a_library_gets_into_a_commands_output(tmp_path: Path) -> None:
    # A process of its own: how logs are set up belongs to the whole process.
    command = [sys.executable, "-m", "spotwise.cli", "drain", "token-0", "--nats-url", "nats://127.0.0.1:1"]
    env = os.environ | {"SPOTWISE_HOME": str(tmp_path)}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    [line] = ended.stderr.splitlines()
    assert line.startswith("error: no NATS server answers at nats://127.0.0.1:1")
