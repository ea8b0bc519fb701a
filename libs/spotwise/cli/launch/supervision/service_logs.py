"""Logs of a mesh's processes: bounds their size, reads their ends, and follows them.

A log that has grown over its size is copied to `NAME.log.1` and cut to nothing; the earlier copies are renamed. Every process
appends, so that it continues at the new end. Lines that come between the copy's end and the cut are lost.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import orjson

#: Files of each log: the one that is written, and earlier ones.
LOG_FILES = 3
#: Interval between two looks at the sizes.
_LOOK_S = 1.0


class LogRotation:
    """Keeps each log at `max_bytes` a file, `LOG_FILES` files at most."""

    def __init__(self, log_paths: Sequence[Path], max_bytes: int) -> None:
        self._log_paths = tuple(log_paths)
        self._max_bytes = max_bytes
        self._looked_s: float | None = None

    def rotate_when_due(self, now_s: float) -> None:
        """Look at the sizes once a second, and rotate; without space for a copy the earlier ones are given up."""
        if self._looked_s is not None and now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        for path in self._log_paths:
            try:
                if path.stat().st_size > self._max_bytes:
                    _rotate(path)
            except OSError:
                continue  # it is not there, or cannot be written; the next look tries again


def _rotate(path: Path) -> None:
    copies = [path.with_name(f"{path.name}.{number}") for number in range(1, LOG_FILES)]
    copies[-1].unlink(missing_ok=True)
    for older, newer in zip(reversed(copies[1:]), reversed(copies[:-1]), strict=True):
        if newer.exists():
            newer.rename(older)
    with path.open("r+b") as log:
        try:
            with open(copies[0], "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as copy:
                shutil.copyfileobj(log, copy)
        except OSError:
            # A full disk: the log must not keep it full.
            for each in copies:
                each.unlink(missing_ok=True)
        log.truncate(0)


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
