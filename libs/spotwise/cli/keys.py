"""`spotwise keys`: makes, shows, rotates and revokes the API keys of a mesh.

A secret is printed once, when it is made; the mesh keeps its digest alone.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Self, TypeAlias, TypeVar

import typer
from pydantic import model_validator
from rich.console import Console
from rich.table import Table

from spotwise.cli.drain import parse_duration
from spotwise.cli.errors import CommandError, OptionError
from spotwise.cli.launch.run_folder import DEFAULT_NAME
from spotwise.cli.mesh.access import open_store
from spotwise.cli.mesh.options import MeshName, RedisUrl
from spotwise.cli.mesh.running import find_store
from spotwise.cli.option_groups import OptionGroup, with_option_groups
from spotwise.cli.quantities import duration_text
from spotwise.core.access.keys import (
    MAX_KEYS,
    SECRET_BYTES,
    KeyRecord,
    KeyScope,
    KeySecret,
    KeyState,
    digest_of,
    is_key_name,
    secret_of,
)
from spotwise.core.access.quotas import KeyLimits
from spotwise.mesh.ports.keys import KeyStore
from spotwise.mesh.redis.keys import record_json

keys = typer.Typer(
    help="Make, show, rotate and revoke the API keys of a mesh.", no_args_is_help=True, add_completion=False
)

_STYLES = {KeyState.ACTIVE: "green", KeyState.ROTATING: "yellow", KeyState.EXPIRED: "red"}


def key_as_dict(record: KeyRecord, now_s: float, last_use_unix_s: float | None) -> dict[str, Any]:
    """Return a key as JSON has it: times in UTC, no digests."""
    return {
        "name": record.name,
        "state": record.state(now_s).value,
        "scopes": [scope.value for scope in record.scopes],
        "created": _utc(record.created_unix_s),
        "expires": _utc(record.expires_unix_s),
        "old_secret_until": _utc(record.secrets[1].until_unix_s) if len(record.live_secrets(now_s)) > 1 else None,
        "last_use": _utc(last_use_unix_s),
        "limits": asdict(record.limits),
    }


def keys_table(records: Iterable[KeyRecord], now_s: float, last_use: Mapping[str, float] | None) -> Table:
    """Return a table of keys; `last_use` in Unix seconds by name, None without that column."""
    table = Table(header_style="bold")
    for heading in ("key", "state", "scopes", "limits", "created", "expires"):
        table.add_column(heading)
    if last_use is not None:
        table.add_column("last use")
    for record in records:
        state = record.state(now_s)
        ends_s = record.expires_unix_s
        cells = [
            record.name,
            f"[{_STYLES[state]}]{state}[/]",
            ", ".join(record.scopes),
            _limits_text(record.limits),
            f"{duration_text(max(0.0, now_s - record.created_unix_s))} ago",
            "never" if ends_s is None else f"in {duration_text(ends_s - now_s)}" if ends_s > now_s else "over",
        ]
        if last_use is not None:
            used_s = last_use.get(record.name)
            cells.append("never" if used_s is None else f"{duration_text(max(0.0, now_s - used_s))} ago")
        table.add_row(*cells)
    return table


def _limits_text(limits: KeyLimits) -> str:
    named = (
        (limits.requests_per_minute, "requests/min"),
        (limits.tokens_per_minute, "tokens/min"),
        (limits.tokens_per_day, "tokens/day"),
        (limits.max_streams, "at once"),
    )
    return "\n".join(f"{most:,} {unit}" for most, unit in named if most is not None) or "none"


def _utc(unix_s: float | None) -> str | None:
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")


KeyName: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the key: the tenant of what it requests.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Scopes: TypeAlias = Annotated[
    list[KeyScope] | None,
    typer.Option(
        "--scope", help="generate (all of /v1), read (what GET shows) or metrics; several; generate by default."
    ),
]
Expires: TypeAlias = Annotated[
    str | None, typer.Option(help="Life of the key, such as 30d or 12h; without end by default.")
]
Bound: TypeAlias = Annotated[int | None, typer.Option(min=0, help="At most; 0 is without a limit.", show_default=False)]

#: A gateway looks each second.
RESTORED_WITHIN_S = 2.0
_LOOK_EVERY_S = 0.1

_Result = TypeVar("_Result")


class LimitOptions(OptionGroup):
    """The options that bound what a key may use."""

    requests_per_minute: Bound = None
    tokens_per_minute: Bound = None
    tokens_per_day: Bound = None
    max_streams: Bound = None

    def changed(self, limits: KeyLimits) -> KeyLimits:
        """Return limits with those that were named, 0 as none."""
        return replace(limits, **{name: bound or None for name, bound in self if bound is not None})

    @model_validator(mode="after")
    def _are_limits(self) -> Self:
        self.changed(KeyLimits())
        return self


class NewKeyOptions(OptionGroup):
    """The options of a key that is made."""

    scope: Scopes = None
    expires: Expires = None


@keys.command("create")
@with_option_groups
def create(
    key: KeyName,
    given: NewKeyOptions,
    bounds: LimitOptions,
    name: MeshName = DEFAULT_NAME,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print its secret, which is shown this once."""
    secret, record = _new_key(key, given, bounds)

    async def put(store: KeyStore) -> None:
        await _let_restore(store)
        known = (await store.keys()).keys
        if len(known) >= MAX_KEYS:
            raise CommandError(f"the mesh has {MAX_KEYS} keys, and no more; revoke some first")
        if not await store.put_key(record, None):
            raise CommandError(f"there is a key {key!r}; `spotwise keys rotate` gives it a new secret")

    _with_keys(name, redis_url, put)
    _show_secret(secret, record, as_json=as_json)


@keys.command("list")
def list_keys(name: MeshName = DEFAULT_NAME, redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """Show the keys: state, scopes, limits, life and last use; never a secret."""

    async def read(store: KeyStore) -> tuple[list[KeyRecord], dict[str, float]]:
        return [*(await store.keys()).keys.values()], await store.last_use()

    records, last_use = _with_keys(name, redis_url, read)
    now_s = time.time()
    if as_json:
        shown = [key_as_dict(record, now_s, last_use.get(record.name)) for record in records]
        Console().print_json(json.dumps({"keys": shown}))
    else:
        Console().print(keys_table(records, now_s, last_use))


@keys.command("rotate")
def rotate(
    key: KeyName,
    overlap: Annotated[str, typer.Option(help="How long the old secret stays valid; 0s ends it at once.")] = "24h",
    name: MeshName = DEFAULT_NAME,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Give a key a new secret; the old one stays valid for a while."""
    overlap_s = parse_duration(overlap, "--overlap")
    secret = _new_secret()
    now_s = time.time()
    record = _with_keys(
        name, redis_url, _change(key, lambda record: record.rotated(digest_of(secret.encode()), now_s, overlap_s))
    )
    _show_secret(secret, record, as_json=as_json)


@keys.command("revoke")
def revoke(key: KeyName, name: MeshName = DEFAULT_NAME, redis_url: RedisUrl = None) -> None:
    """Remove a key: gateways refuse it within seconds. Requests that run are finished."""

    async def delete(store: KeyStore) -> None:
        if not await store.delete_key(key):
            raise _unknown(key)

    _with_keys(name, redis_url, delete)
    Console(highlight=False).print(f"{key} is revoked")


@keys.command("limits")
@with_option_groups
def limits(
    key: KeyName,
    bounds: LimitOptions,
    name: MeshName = DEFAULT_NAME,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Change limits of a key, or show them; those that are not named stay."""
    record = _with_keys(
        name, redis_url, _change(key, lambda record: replace(record, limits=bounds.changed(record.limits)))
    )
    if as_json:
        Console().print_json(json.dumps(key_as_dict(record, time.time(), None)["limits"]))
    else:
        Console().print(keys_table([record], time.time(), None))


@keys.command("hash")
@with_option_groups
def hash_key(
    key: KeyName,
    given: NewKeyOptions,
    bounds: LimitOptions,
) -> None:
    """Make a key for SPOTWISE_API_KEYS_FILE: its line goes to standard output, its secret to standard error."""
    secret, record = _new_key(key, given, bounds)
    typer.echo(record_json(record))
    typer.echo(secret, err=True)


def _new_key(name: str, given: NewKeyOptions, bounds: LimitOptions) -> tuple[str, KeyRecord]:
    if not is_key_name(name):
        raise OptionError(f"NAME {name!r} is no name of a key; use 1 to 64 of A-Z a-z 0-9 . _ -")
    now_s, secret = time.time(), _new_secret()
    record = KeyRecord(
        name,
        (KeySecret(digest_of(secret.encode())),),
        tuple(scope for scope in KeyScope if scope in (given.scope or (KeyScope.GENERATE,))),
        created_unix_s=now_s,
        expires_unix_s=None if given.expires is None else now_s + parse_duration(given.expires, "--expires"),
        limits=bounds.changed(KeyLimits()),
    )
    return secret, record


def _new_secret() -> str:
    return secret_of(base64.urlsafe_b64encode(secrets.token_bytes(SECRET_BYTES)).rstrip(b"=").decode())


def _change(name: str, change: Callable[[KeyRecord], KeyRecord]) -> Callable[[KeyStore], Awaitable[KeyRecord]]:
    async def apply(store: KeyStore) -> KeyRecord:
        known = (await store.keys()).keys.get(name)
        if known is None:
            raise _unknown(name)
        changed = change(known)
        if changed != known and not await store.put_key(changed, known):
            raise CommandError(f"{name} was changed by another command at the same time; look at it and try again")
        return changed

    return apply


async def _let_restore(store: KeyStore) -> None:
    """Wait, where no key was ever made, whether gateways write keys back that the store has forgotten: one of this name may be
    among them.
    """
    for _ in range(round(RESTORED_WITHIN_S / _LOOK_EVERY_S)):
        if await store.revision():
            return
        await asyncio.sleep(_LOOK_EVERY_S)


def _unknown(name: str) -> CommandError:
    return CommandError(f"there is no key {name!r}; `spotwise keys list` shows them")


def _with_keys(name: str, redis_url: str | None, work: Callable[[KeyStore], Awaitable[_Result]]) -> _Result:
    async def run(url: str) -> _Result:
        async with open_store(url) as store:
            return await work(store.keys)

    return asyncio.run(run(find_store(name, redis_url)))


def _show_secret(secret: str, record: KeyRecord, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"key": secret, **key_as_dict(record, time.time(), None)}))
        return
    typer.echo(secret)
    Console(stderr=True, highlight=False).print(
        f"This is the key of {record.name}; it is shown this once. Clients send it as 'Authorization: Bearer KEY'.",
        soft_wrap=True,
    )
