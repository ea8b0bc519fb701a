"""`spotwise keys`: makes, shows, rotates and revokes the API keys of a mesh."""

from __future__ import annotations

import typer

from spotwise.cli.lazy_group import lazy_group

keys = typer.Typer(
    help="Make, show, rotate and revoke the API keys of a mesh.",
    no_args_is_help=True,
    add_completion=False,
    cls=lazy_group(
        {
            "create": "spotwise.cli.keys.commands:create",
            "list": "spotwise.cli.keys.commands:list_keys",
            "rotate": "spotwise.cli.keys.commands:rotate",
            "revoke": "spotwise.cli.keys.commands:revoke",
            "limits": "spotwise.cli.keys.commands:limits",
            "hash": "spotwise.cli.keys.commands:hash_key",
        }
    ),
)


@keys.callback()
def _group() -> None:
    """Make, show, rotate and revoke the API keys of a mesh."""
