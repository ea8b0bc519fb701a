"""Reads the ends of the services' logs, and follows them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import orjson

_TAIL_BYTES = 64 * 1024
_CANNOT_SERVE = "cannot_serve"
#: A quoted value in the console's log format.
_QUOTED_ERROR = re.compile(r"""\berror=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\S+)""")


def log_tail(path: Path, max_lines: int = 25) -> list[str]:
    """The last lines of a log; empty where it cannot be read."""
    try:
        with path.open("rb") as log:
            size_bytes = log.seek(0, 2)
            log.seek(max(0, size_bytes - _TAIL_BYTES))
            return log.read().decode(errors="replace").splitlines()[-max_lines:]
    except OSError:
        return []


def reason_for_not_serving(lines: Sequence[str]) -> str | None:
    """Return the reason that a service's log gives, in one entry, for not serving; `None` without such an entry."""
    entry = next((line for line in reversed(lines) if _CANNOT_SERVE in line), None)
    if entry is None:
        return None
    try:
        if entry.lstrip().startswith("{"):
            return str(orjson.loads(entry)["error"])
        quoted = _QUOTED_ERROR.search(entry)
        if quoted is None:
            return None
        value = quoted.group(1)
        return str(ast.literal_eval(value)) if value[0] in "'\"" else value
    except (ValueError, SyntaxError, KeyError):  # another program's line
        return None


class LogFollower:
    """Follows several logs."""

    def __init__(self, log_paths: Mapping[str, Path]) -> None:
        self._log_paths = dict(log_paths)
        self._offsets = dict.fromkeys(log_paths, 0)

    def new_lines(self) -> Iterator[tuple[str, str]]:
        """Complete lines added since the last call, each with the name of its log."""
        for name, path in self._log_paths.items():
            try:
                with path.open("rb") as log:
                    if log.seek(0, 2) < self._offsets[name]:
                        self._offsets[name] = 0  # it was rotated
                    log.seek(self._offsets[name])
                    added = log.read()
            except OSError:
                continue
            complete = added[: added.rfind(b"\n") + 1]
            self._offsets[name] += len(complete)
            for line in complete.decode(errors="replace").splitlines():
                yield name, line
