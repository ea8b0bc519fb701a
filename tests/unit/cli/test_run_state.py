"""The record of a running mesh."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from spotwise.cli.errors import CommandError
from spotwise.cli.launch.run_folder import run_folder
from spotwise.cli.launch.supervision.run_state import RecordedService, RunState, ServiceState, read_state, write_state
from spotwise.mesh.embedded.child_process import ProcessIdentity
from tests.unit.cli.builders import run_state


def make_state() -> RunState:
    return run_state(
        services={
            "token-0": RecordedService(state=ServiceState.HEALTHY, process=ProcessIdentity(11, 1001), restarts=2),
            "prompt-0": RecordedService(state=ServiceState.LEFT),
        }
    )


def test_only_its_owner_reads_it(tmp_path: Path) -> None:
    """The file holds passwords, so it is private, even over an older version's readable file."""
    path = tmp_path / "state.json"
    path.write_text("{}")
    path.chmod(0o644)
    path.with_suffix(".draft").write_text("a part")
    write_state(path, make_state())
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_record_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    write_state(path, make_state())

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        write_state(path, make_state())
    assert read_state(path) == make_state()
    assert list(tmp_path.iterdir()) == [path]


def test_the_folder_of_a_mesh_is_its_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTWISE_HOME", str(tmp_path / "home"))
    folder = run_folder("here")
    folder.logs_folder.mkdir(parents=True, mode=0o755)
    with folder.claimed():
        for path in (folder.path, folder.logs_folder):
            assert path.stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPOTWISE_HOME", str(tmp_path / "file"))
    with pytest.raises(CommandError, match="set SPOTWISE_HOME to another folder"), run_folder("here").claimed():
        pass


def test_processes_are_those_that_run(tmp_path: Path) -> None:
    assert make_state().processes() == (ProcessIdentity(11, 1001),)


def test_no_record_and_an_unreadable_one_are_no_mesh(tmp_path: Path) -> None:
    """A half-written file, or another program's, is not acted upon."""
    path = tmp_path / "state.json"
    assert read_state(path) is None
    path.write_text('{"supervisor": {"pid": 1')
    assert read_state(path) is None
    path.write_text("{}")
    assert read_state(path) is None


def test_fields_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    """An older `spotwise down` still stops a newer mesh."""
    path = tmp_path / "state.json"
    path.write_text(make_state().model_dump_json()[:-1] + ', "later": 1}')
    assert read_state(path) == make_state()
