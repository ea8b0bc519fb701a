"""`spotwise`: the command line; each command is a function in a file of its own, named like it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from spotwise.cli.errors import CommandError, os_error_line, silence_logging
from spotwise.cli.lazy_group import lazy_group

#: Where each command is, and what `--help` says of it, for which none is imported.
COMMANDS = {
    "up": (
        "spotwise.cli.launch.up:up",
        "Start a mesh: model, broker, store and the six services; Ctrl-C stops it.",
    ),
    "down": (
        "spotwise.cli.launch.down:down",
        "Stop the mesh that `spotwise up` started, and wait until all its processes have ended.",
    ),
    "chat": (
        "spotwise.cli.chat:chat",
        "Chat with the mesh, or ask it one question: the argument, or the text piped in.",
    ),
    "status": (
        "spotwise.cli.status:status",
        "Show services, pools, queues and KV use. Exit status 1 where a member is not healthy, is refused, or one is missing, "
        "and where the store had no more memory within the last minute.",
    ),
    "join": (
        "spotwise.cli.join:join",
        "Add a worker to a running mesh, in the foreground; Ctrl-C or `spotwise drain` removes it again.",
    ),
    "drain": (
        "spotwise.cli.drain:drain",
        "Let a worker finish its requests, take nothing new, and leave; requests left at the deadline continue elsewhere. "
        "A device leaves once its groups are formed anew without it.",
    ),
    "move": (
        "spotwise.cli.move:move",
        "Move a running request to another worker, with its KV: it goes on there at its next token.",
    ),
    "reshape": (
        "spotwise.cli.reshape:reshape",
        "Change how the devices of a mesh are grouped, while it serves: new groups form, and running requests move to them.",
    ),
    "fleet": (
        "spotwise.cli.fleet:app",
        "Show the instances of a mesh: lives, prices, and why each is there; and what can be had.",
    ),
    "keys": (
        "spotwise.cli.keys:keys",
        "Make, show, rotate and revoke the API keys of a mesh.",
    ),
    "explain": (
        "spotwise.cli.explain:explain",
        "Show what every member did for a request: workers, queues, KV moved and over what, TTFT, TPOT, tokens.",
    ),
    "profile": (
        "spotwise.cli.profile:profile",
        "Record what iterations and KV hand-offs cost on a live mesh; `up --engine simulated` and `simulate run` take it.",
    ),
    "replay": (
        "spotwise.cli.replay:replay_command",
        "Feed journals to fresh roles and compare every command. Exit status 1 where a command differs.",
    ),
    "certs": (
        "spotwise.cli.certs.app:certs",
        "Make certificates, users and passwords for a mesh on several hosts.",
    ),
    "plan": (
        "spotwise.cli.plan.command:plan",
        "Plan a change of the parallel configuration: new positions of devices, order of transfers, duration.",
    ),
    "bench": (
        "spotwise.cli.bench.app:bench",
        "Measure a mesh; every benchmark takes --json FILE.",
    ),
    "simulate": (
        "spotwise.cli.simulate.app:simulate",
        "Simulate a cluster with the mesh's own scheduler and workers; every command takes --json FILE.",
    ),
}

app = typer.Typer(
    name="spotwise",
    help="Serves large language models on machines that come and go, token for token.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    cls=lazy_group(
        {name: place for name, (place, _) in COMMANDS.items()},
        before=lambda name: silence_logging(),
        texts={name: text for name, (_, text) in COMMANDS.items()},
    ),
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata  # imports email, and much else

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
    try:
        app()
    except CommandError as error:
        _end(str(error), error.exit_status)
    except OSError as error:  # on the edge of the program: a full disk, a folder of another user
        _end(os_error_line(error), CommandError.exit_status)


def _end(message: str, exit_status: int) -> None:
    from rich.console import Console

    Console(stderr=True, highlight=False).print(f"error: {message}", style="red", markup=False, soft_wrap=True)
    sys.exit(exit_status)


if __name__ == "__main__":
    main()
