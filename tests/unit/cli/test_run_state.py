"""The record of a running mesh."""

from __future__ import annotations

from pathlib import Path

from spotwise.cli.options import MeshOptions
from spotwise.cli.run_state import RecordedService, RunState, ServiceState, read_state, write_state
from spotwise.mesh.child_process import ProcessIdentity


def make_state() -> RunState:
    return RunState(
        supervisor=ProcessIdentity(10, 1000),
        ready=True,
        options=MeshOptions(name="default", model_folder=Path("/m"), model_name="m"),
        nats_url="nats://127.0.0.1:1",
        redis_url="redis://127.0.0.1:2/0",
        started_unix_s=3.5,
        services={
            "token-0": RecordedService(state=ServiceState.HEALTHY, process=ProcessIdentity(11, 1001), restarts=2),
            "prompt-0": RecordedService(state=ServiceState.LEFT),
        },
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Nothing is lost, and no draft is left beside it."""
    path = tmp_path / "state.json"
    write_state(path, make_state())
    assert read_state(path) == make_state()
    assert list(tmp_path.iterdir()) == [path]


def test_processes_are_those_that_run(tmp_path: Path) -> None:
    """A service that left has none."""
    assert make_state().processes() == (ProcessIdentity(11, 1001),)


def test_no_record_and_an_unreadable_one_are_no_mesh(tmp_path: Path) -> None:
    """A half-written or foreign file is not acted upon."""
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
