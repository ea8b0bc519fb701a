"""`spotwise certs`: certificates, users and passwords of a mesh on several hosts."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from spotwise.cli.certs.folder import CredentialsFolder
from spotwise.cli.errors import OptionError
from spotwise.wire.permissions import Principal
from spotwise.wire.roles import MeshRole

_Folder = Annotated[Path, typer.Option("--folder", help="Folder of the mesh's credentials.")]
_Days = Annotated[int, typer.Option(min=1, help="Validity of certificates in days.")]
_FOLDER = Path("mesh-certs")
_DAYS = 365

certs = typer.Typer(
    help="Make certificates, users and passwords for a mesh on several hosts.",
    no_args_is_help=True,
    add_completion=False,
)


@certs.command()
def init(
    nats_host: Annotated[str, typer.Option(help="Host name or address of the broker.")],
    redis_host: Annotated[str, typer.Option(help="Host name or address of the store.")],
    folder: _Folder = _FOLDER,
    days: _Days = _DAYS,
    ca_days: Annotated[int, typer.Option(min=1, help="Validity of the CA in days.")] = 3650,
) -> None:
    """Make a CA, the servers' certificates and configuration, and credentials for each role."""
    CredentialsFolder(folder).create(nats_host, redis_host, days, ca_days)
    typer.echo(
        f"{folder} has credentials of all roles in members/ and of the servers in servers/; keep ca/ to yourself"
    )


@certs.command()
def issue(
    role: Annotated[MeshRole, typer.Argument(help="What the member is.")],
    member_id: Annotated[
        str | None, typer.Option("--id", help="The member's SPOTWISE_SERVICE_ID: a user that can be no other member.")
    ] = None,
    host: Annotated[list[str] | None, typer.Option(help="Further names or addresses in the certificate.")] = None,
    also: Annotated[list[MeshRole] | None, typer.Option(help="Further roles in the certificate.")] = None,
    folder: _Folder = _FOLDER,
    days: _Days = _DAYS,
) -> None:
    """Make credentials of one member, and add its user to the servers' configuration."""
    if member_id is not None and not all(each.isalnum() or each in "_-" for each in member_id):
        raise OptionError(f"--id {member_id!r}: use letters, digits, '_' and '-'")
    principal = Principal(role, member_id)
    roles = tuple(dict.fromkeys((role, *(also or ()))))
    CredentialsFolder(folder).issue(principal, roles, host or (), days)
    typer.echo(f"{folder}/members/{principal.name} is written; load the servers' configuration anew")


@certs.command("list")
def list_certificates(folder: _Folder = _FOLDER) -> None:
    """Show all certificates and when they expire."""
    table = Table(header_style="bold")
    for heading in ("certificate", "roles", "hosts", "expires"):
        table.add_column(heading)
    for path, certified in CredentialsFolder(folder).certificates().items():
        table.add_row(
            str(path.relative_to(folder)),
            ", ".join(certified.roles) or "-",
            ", ".join(certified.hosts) or "-",
            f"{certified.expires:%Y-%m-%d}",
        )
    Console().print(table)


@certs.command()
def renew(
    within: Annotated[int, typer.Option(min=0, help="Renew what expires within so many days.")] = 30,
    folder: _Folder = _FOLDER,
    days: _Days = _DAYS,
) -> None:
    """Make new keys and certificates for those that expire soon; processes read them when they start."""
    credentials = CredentialsFolder(folder)
    latest = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=within)
    due = [path for path, certified in credentials.certificates().items() if certified.expires <= latest]
    for path in due:
        renewed = credentials.renew(path, days)
        typer.echo(f"{path.relative_to(folder)}: valid until {renewed.expires:%Y-%m-%d}")
    if not due:
        typer.echo(f"no certificate expires within {within} days")
