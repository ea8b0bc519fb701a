"""The command line imports the command that is run, and no other."""

from __future__ import annotations

import subprocess
import sys

import typer
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from spotwise.cli import __main__ as program
from spotwise.cli.lazy_group import lazy_group

HEAVY = ("torch", "transformers", "scipy", "matplotlib", "spotwise.simulator", "spotwise.benchmarks")


def app_of(places: dict[str, str]) -> typer.Typer:
    app = typer.Typer(cls=lazy_group(places), add_completion=False)

    @app.callback()
    def group() -> None:
        """Some commands."""

    return app


def test_a_small_command_imports_nothing_heavy() -> None:
    """`spotwise drain --help` answers at once: no tensor library, no simulator."""
    run = (
        "import sys; from spotwise.cli.__main__ import app\n"
        "try: app(['drain', '--help'])\n"
        f"finally: sys.stderr.write(','.join(set(sys.modules) & set({HEAVY!r})))"
    )
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=60, check=False)
    assert "--deadline" in done.stdout
    assert done.stderr == ""


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


#: What takes long to import, and what a list of commands needs none of.
NOT_FOR_A_LIST = {
    "cryptography",
    "grpc",
    "httpx",
    "nats",
    "numpy",
    "opentelemetry",
    "pydantic",
    "redis",
    "structlog",
    "torch",
    "transformers",
}


def test_help_imports_nothing_that_takes_long() -> None:
    code = (
        "import sys\nfrom spotwise.cli import __main__ as program\nsys.argv = ['spotwise', '--help']\n"
        "try:\n    program.main()\nfinally:\n    print('modules', *{name.partition('.')[0] for name in sys.modules})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "simulate" in done.stdout, done.stderr
    imported = set(done.stdout.splitlines()[-1].split())
    assert {"modules", "typer", "spotwise"} <= imported
    assert not NOT_FOR_A_LIST & imported
