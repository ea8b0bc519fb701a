"""Writes a role's journal: its parameters, each event with its time, and the commands that the role returned. Written where
`SPOTWISE_JOURNAL` names a folder, one file per incarnation of a member; read by `journal_replay.py` alone. A file is gzip
over lines of JSON: a header, then `[time, event type, event, commands]` for each event, and a fifth field, the error's type,
where the role raised. It is flushed about once a second: a killed process loses no more than that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import inspect
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import orjson
import structlog

from spotwise.core.kv.blocks import BlockPool
from spotwise.core.messages.members import Member
from spotwise.core.messages.mesh import Send
from spotwise.mesh.service.journal_formats import FORMAT

_log = structlog.get_logger(__name__)

SUFFIX = ".journal.gz"
#: Time between flushes, by the role's clock: what a killed process loses at most.
FLUSH_S = 1.0
#: The fastest: compression takes time from the work that is recorded.
_COMPRESSION = 1

P = ParamSpec("P")
RoleT = TypeVar("RoleT")


class Journal:
    """Writes one role's journal; raises `OSError` where the folder cannot be written."""

    def __init__(self, folder: Path, member: Member, role: str, parameters: dict[str, Any]) -> None:
        # A journal holds prompts: only its owner may read it.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{member.id}-{member.incarnation}{SUFFIX}"
        self._raw = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        self._file: gzip.GzipFile | None = gzip.GzipFile(path.name, "wb", _COMPRESSION, self._raw)
        self._flushed_s = 0.0
        header = {
            "format": FORMAT,
            "role": role,
            "member_id": member.id,
            "incarnation": member.incarnation,
            "parameters": parameters,
        }
        # orjson would write an infinite limit as null.
        self._file.write(json.dumps(header, default=_plain).encode() + b"\n")
        self._file.flush()

    def note(self, event: Any, now: float, commands: Sequence[Any], error: Exception | None) -> None:
        """Write one event and its commands; a full disk ends the journal, not the service."""
        if self._file is None:
            return
        line: list[Any] = [now, type(event).__name__, event, [*map(encoded, commands)]]
        if error is not None:
            line.append(type(error).__name__)
        try:
            self._file.write(dumped(line) + b"\n")
            if now - self._flushed_s >= FLUSH_S:
                self._flushed_s = now
                self._file.flush()
        except OSError as full:
            _log.error("journal_ended", error=str(full))
            self._file = None
            with contextlib.suppress(OSError):
                self._raw.close()

    def close(self) -> None:
        """Flush and close the file; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            try:
                with self._raw:
                    file.close()
            except OSError as full:
                _log.error("journal_ended", error=str(full))


def encoded(command: Any) -> list[Any]:
    """Return a command with its type, and that of the message that it sends."""
    if isinstance(command, Send):
        return ["Send", command.recipient_id, type(command.message).__name__, command.message]
    return [type(command).__name__, command]


def dumped(value: Any) -> bytes:
    """Return events or commands as JSON."""
    return orjson.dumps(value, default=_fields)


def make_role(
    folder: Path | None, member: Member, role_type: Callable[P, RoleT], *args: P.args, **kwargs: P.kwargs
) -> tuple[RoleT, Journal | None]:
    """Make a member's role, and its journal where `folder` is set; raises `OSError` where the folder cannot be written."""
    journal = None
    if folder is not None:
        given = inspect.signature(role_type).bind(*args, **kwargs)
        given.apply_defaults()
        # Before the role is made, which may change its arguments.
        journal = Journal(folder, member, getattr(role_type, "__name__", ""), dict(given.arguments))
    return role_type(*args, **kwargs), journal


def _fields(value: Any) -> list[Any]:
    if isinstance(value, tuple):  # a named one
        return [*value]
    raise TypeError(f"a journal cannot hold a {type(value).__name__}")


def _plain(value: Any) -> Any:
    if isinstance(value, BlockPool):
        return {"num_blocks": value.num_blocks, "block_size": value.block_size}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"a journal cannot hold a {type(value).__name__}")
