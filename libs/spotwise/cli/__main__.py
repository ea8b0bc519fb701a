"""`spotwise`: the command line; each command is a function in a file of its own, named like it."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from spotwise.cli.bench.app import bench
from spotwise.cli.chat import chat
from spotwise.cli.drain import drain
from spotwise.cli.errors import CommandError
from spotwise.cli.explain import explain
from spotwise.cli.join import join
from spotwise.cli.launch.down import down
from spotwise.cli.launch.up import up
from spotwise.cli.plan.command import plan
from spotwise.cli.profile import profile
from spotwise.cli.replay import replay_command
from spotwise.cli.simulate.app import simulate
from spotwise.cli.status import status
from spotwise.mesh.telemetry import silence_logging

app = typer.Typer(
    name="spotwise",
    help="Serves large language models on machines that come and go, token for token.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(up)
app.command()(down)
app.command()(chat)
app.command()(status)
app.command()(join)
app.command()(drain)
app.command()(explain)
app.command()(profile)
app.command("replay")(replay_command)
app.command()(plan)
app.add_typer(bench, name="bench")
app.add_typer(simulate, name="simulate")


def main() -> None:
    """Run one command; a `CommandError` is printed on one line, with exit status 1, or 2 where an option is wrong."""
    silence_logging()
    try:
        app()
    except CommandError as error:
        Console(stderr=True, highlight=False).print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
