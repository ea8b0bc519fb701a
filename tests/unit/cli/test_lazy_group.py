"""The command line imports the command that is run, and no other."""

from __future__ import annotations

import os
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from spotwise.cli import __main__ as program
from spotwise.cli.launch.supervision.run_state import write_state
from spotwise.cli.lazy_group import lazy_group
from tests.unit.cli.builders import run_state


def app_of(places: dict[str, str]) -> typer.Typer:
    app = typer.Typer(cls=lazy_group(places), add_completion=False)

    @app.callback()
    def group() -> None:
        """Some commands."""

    return app


def test_a_mesh_that_buys_nothing_starts_without_what_reads_fleets() -> None:
    run = (
        "import sys, spotwise.cli.launch.up\n"
        "print(*{'numpy', 'spotwise.files.fleet_file', 'torch', 'transformers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "\n"


def test_help_names_the_commands_in_their_order() -> None:
    app = app_of({"status": "spotwise.cli.status:status", "drain": "spotwise.cli.drain:drain"})
    shown = CliRunner().invoke(app, ["--help"]).output
    assert 0 < shown.index("status") < shown.index("drain")


def test_an_unknown_command_is_answered_with_the_nearest() -> None:
    answer = CliRunner().invoke(app_of({"status": "spotwise.cli.status:status"}), ["statsu"])
    assert answer.exit_code == 2
    assert "Did you mean 'status'?" in answer.output


def test_a_command_is_announced_before_its_module_is_imported() -> None:
    announced: list[tuple[str, bool]] = []
    module = "spotwise.cli.status"
    sys.modules.pop(module, None)
    group = lazy_group(
        {"status": f"{module}:status", "drain": "spotwise.cli.drain:drain"},
        before=lambda name: announced.append((name, module in sys.modules)),
    )
    app = typer.Typer(cls=group, add_completion=False)
    app.callback()(lambda: None)
    assert CliRunner().invoke(app, ["status", "--help"]).exit_code == 0
    assert announced == [("status", False)]


def test_help_of_all_commands_says_what_each_says_of_itself() -> None:
    """The list imports no command, and so has texts of its own."""
    group = get_command(program.app)
    assert isinstance(group, TyperGroup)
    for name, (_, text) in program.COMMANDS.items():
        command = group.commands[name]
        assert command.help is not None
        assert " ".join(command.help.split()) == text


#: What computes, and takes long to import.
HEAVY = {
    "matplotlib",
    "scipy",
    "spotwise.benchmarks",
    "spotwise.simulator",
    "spotwise.studies",
    "torch",
    "transformers",
}
#: What neither a list of commands nor a command without a mesh needs.
ONLY_WITH_A_MESH = HEAVY | {"cryptography", "grpc", "httpx", "nats", "numpy", "opentelemetry", "redis"}


def imported_by(*arguments: str, home: Path) -> tuple[set[str], str]:
    """Run the program in a new process; returns what it imported, other programs by their packages, and what it wrote."""
    code = (
        f"import sys\nfrom spotwise.cli import __main__ as program\nsys.argv = ['spotwise', *{arguments!r}]\n"
        "try:\n    program.main()\nfinally:\n"
        "    print('modules', *{name if name.startswith('spotwise') else name.partition('.')[0] for name in sys.modules})\n"
    )
    environ = {**os.environ, "SPOTWISE_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environ)
    written, _, modules = done.stdout.rpartition("modules ")
    assert {"typer", "spotwise"} <= set(modules.split()), done.stderr
    return set(modules.split()), written + done.stderr


@pytest.mark.parametrize(
    ("arguments", "said", "left_out"),
    [
        ("--help", "simulate", ONLY_WITH_A_MESH | {"asyncio", "pydantic", "structlog"}),
        ("drain --help", "--deadline", HEAVY),
        ("status", "no mesh named 'default' runs here", ONLY_WITH_A_MESH),
    ],
)
def test_a_command_imports_nothing_that_it_does_not_need(
    tmp_path: Path, arguments: str, said: str, left_out: set[str]
) -> None:
    imported, written = imported_by(*arguments.split(), home=tmp_path)
    assert said in written
    assert not left_out & imported


def test_what_shows_members_imports_neither_messages_nor_plans() -> None:
    """The core's types take as long to make as all clients of the mesh together, and members need few of them."""
    code = "import sys, spotwise.cli.mesh.status_table; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    imported = set(done.stdout.split())
    assert "spotwise.core.messages.members" in imported
    assert not {f"spotwise.core.{name}" for name in ("messages.mesh", "messages.groups", "planner.plan")} & imported


class _RefusingStore(socketserver.BaseRequestHandler):
    """A store that answers every command with the same error, so that its client gives up at once."""

    def handle(self) -> None:
        while self.request.recv(65536):
            self.request.sendall(b"-NOPERM this user may do nothing\r\n")


def test_status_of_a_mesh_imports_no_engine_and_no_arrays(tmp_path: Path) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _RefusingStore) as store:
        store.daemon_threads = True
        threading.Thread(target=store.serve_forever, daemon=True).start()
        folder = tmp_path / "run" / "default"
        folder.mkdir(parents=True)
        write_state(folder / "state.json", run_state(redis_url=f"redis://127.0.0.1:{store.server_address[1]}/0"))
        imported, written = imported_by("status", home=tmp_path)
        store.shutdown()
    assert "this user may do nothing" in written
    assert {"redis", "grpc"} <= imported
    assert not {"nats", "numpy", "scipy", "torch", "transformers"} & imported
