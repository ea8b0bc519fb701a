"""The command line imports the command that is run, and no other."""

from __future__ import annotations

import subprocess
import sys

import typer
from typer.testing import CliRunner

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
