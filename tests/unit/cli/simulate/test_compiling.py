"""`spotwise simulate compile`, and whom it is recommended to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spotwise.cli.simulate.progress import hint_at_compiling
from spotwise.simulator.compiled import build, modules
from spotwise.simulator.compiled.loading import VARIABLE
from spotwise.simulator.compiled.modules import fingerprint
from tests.unit.cli.command_line import CommandLine


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (build, modules):
        monkeypatch.setattr(module, "folders", lambda: (tmp_path / "beside", tmp_path / "cache"))
    return tmp_path / "beside"


def test_without_a_compiler_it_says_what_to_do(
    spotwise: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = spotwise("simulate", "compile")
    assert ended.status == 1
    assert "apt-get install gcc" in ended.stderr


def test_it_names_what_is_there(spotwise: CommandLine, folder: Path) -> None:
    (folder / fingerprint()).mkdir(parents=True)
    ended = spotwise("simulate", "compile")
    assert ended.status == 0
    assert fingerprint() in ended.stdout


@pytest.mark.parametrize(
    ("is_terminal", "wanted", "hints"), [(True, "1", True), (False, "1", False), (True, "0", False)]
)
def test_whoever_sits_before_a_terminal_is_told(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_terminal: bool,
    wanted: str,
    hints: bool,
) -> None:
    monkeypatch.setenv(VARIABLE, wanted)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    hint_at_compiling()
    assert ("spotwise simulate compile" in capsys.readouterr().err) is hints
