"""What is compiled, and when it is used."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from spotwise.simulator.compiled import build, modules
from spotwise.simulator.compiled.build import CannotCompileError, ensure_compiled
from spotwise.simulator.compiled.loading import VARIABLE, is_compiled, use_compiled
from spotwise.simulator.compiled.modules import compiled_folder, compiled_modules, fingerprint, source_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (build, modules):
        monkeypatch.setattr(module, "folders", lambda: (tmp_path / "beside", tmp_path / "cache"))
    return tmp_path / "beside"


def test_every_compiled_module_is_there() -> None:
    names = list(compiled_modules())
    assert "spotwise.core.scheduler.role" in names
    assert "spotwise.simulator.world.world" in names
    assert "spotwise.core.latest" not in names
    assert all(source_of(name).is_file() for name in names)


def test_what_is_compiled_is_found_by_its_sources(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert compiled_folder() is None
    made = folder / fingerprint()
    made.mkdir(parents=True)
    assert compiled_folder() == made
    changed = tmp_path / "changed.py"
    changed.write_text("")
    monkeypatch.setattr(modules, "source_of", lambda module: changed)
    assert compiled_folder() is None


def test_a_process_that_has_the_sources_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    assert "spotwise.core.scheduler.role" in sys.modules or __import__("spotwise.core.scheduler.role")
    assert not use_compiled()
    assert not is_compiled()


@pytest.mark.parametrize(
    ("place", "name", "value", "remedy"),
    [
        (shutil, "which", lambda *_, **__: None, "apt-get install gcc"),
        (build, "_headers", lambda: Path("/no/headers"), "apt-get install python3-dev"),
        (build, "find_spec", lambda _: None, r"spotwise\[compiled\]"),
    ],
    ids=["compiler", "headers", "mypyc"],
)
def test_it_says_how_to_install_what_is_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, value: Any, remedy: str
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(place, name, value)
    with pytest.raises(CannotCompileError, match=remedy):
        ensure_compiled()


def test_an_error_of_mypyc_is_shown_and_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_TRANSLATE", "import sys; sys.exit('line 3 is wrong')")
    with pytest.raises(CannotCompileError, match="line 3 is wrong"):
        ensure_compiled()
    assert list(folder.iterdir()) == []
    assert compiled_folder() is None


def test_what_is_there_is_not_compiled_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / fingerprint()).mkdir(parents=True)
    monkeypatch.setattr(build, "_translate", lambda work: pytest.fail("it was compiled again"))
    assert ensure_compiled() == folder / fingerprint()
