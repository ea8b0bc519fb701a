"""API keys as a table, or for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from spotwise.cli.quantities import duration_text
from spotwise.core.access.keys import KeyRecord, KeyState
from spotwise.core.access.quotas import KeyLimits

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
