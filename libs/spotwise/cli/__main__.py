"""`spotwise`: the command line; each command is a function in a file of its own, named like it."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Annotated

import typer
from rich.console import Console

from spotwise.cli.errors import CommandError, os_error_line
from spotwise.cli.lazy_group import lazy_group
from spotwise.cli.silence import silence_logging

app = typer.Typer(
    name="spotwise",
    help="Serves large language models on machines that come and go, token for token.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    cls=lazy_group(
        {
            "up": "spotwise.cli.launch.up:up",
            "down": "spotwise.cli.launch.down:down",
            "chat": "spotwise.cli.chat:chat",
            "status": "spotwise.cli.status:status",
            "join": "spotwise.cli.join:join",
            "drain": "spotwise.cli.drain:drain",
            "move": "spotwise.cli.move:move",
            "reshape": "spotwise.cli.reshape:reshape",
            "fleet": "spotwise.cli.fleet:fleet",
            "keys": "spotwise.cli.keys.app:keys",
            "explain": "spotwise.cli.explain:explain",
            "profile": "spotwise.cli.profile:profile",
            "replay": "spotwise.cli.replay:replay_command",
            "certs": "spotwise.cli.certs.app:certs",
            "plan": "spotwise.cli.plan.command:plan",
            "bench": "spotwise.cli.bench.app:bench",
            "simulate": "spotwise.cli.simulate.app:simulate",
        }
    ),
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spotwise {metadata.version('spotwise')}")
        raise typer.Exit


@app.callback()
def _group(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, help="Show the version, and end.")
    ] = False,
) -> None:
    """Serves large language models on machines that come and go, token for token."""


def main() -> None:
    """Run one command; a `CommandError` is printed on one line, with exit status 1, or 2 where an option is wrong, and what the
    operating system refuses on one line, too.
    """
    silence_logging()
    try:
        app()
    except CommandError as error:
        _end(str(error), error.exit_status)
    except OSError as error:  # on the edge of the program: a full disk, a folder of another user
        _end(os_error_line(error), CommandError.exit_status)


def _end(message: str, exit_status: int) -> None:
    Console(stderr=True, highlight=False).print(f"error: {message}", style="red", markup=False, soft_wrap=True)
    sys.exit(exit_status)


if __name__ == "__main__":
    main()
