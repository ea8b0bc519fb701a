"""Caches runs in a file, so that a stopped search resumes. A run is reused only if its case, the files named by the case, and
the simulating and reading code are unchanged. Each process appends one line per finished run; truncated lines are skipped."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import orjson
from pydantic import TypeAdapter, ValidationError


class Describing(Hashable, Protocol):
    """A run's case: a JSON-serialisable dataclass."""

    @property
    def files(self) -> tuple[Path | None, ...]:
        """Files that the run reads, in a fixed order."""


_Case = TypeVar("_Case", bound=Describing)
_Run = TypeVar("_Run")


@dataclass(frozen=True, slots=True)
class KeptRuns(Generic[_Case, _Run]):
    """Simulates cases that the file lacks; picklable.

    Attributes:
        path: may not exist yet.
        summary: a JSON-serialisable dataclass.
    """

    path: Path
    run: Callable[[_Case], _Run]
    summary: type[Any]

    def __call__(self, case: _Case) -> _Run:
        """Return a case's summary from the file, or simulate and append it; raises OSError if the file cannot be read or
        written."""
        key = _key(case)
        runs_of = _adapter(cast(Hashable, self.summary))
        kept = _read(self.path, runs_of).get(key)
        if kept is not None:
            return cast(_Run, kept)
        summary = self.run(case)
        # The newline comes first, so a truncated line spoils no other.
        line = b'\n{"key":"%b","run":%b}' % (key.encode(), runs_of.dump_json(summary))
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, line)
        finally:
            os.close(file)
        _read(self.path, runs_of)[key] = summary
        return summary


@cache
def _adapter(of: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, of))


@cache
def _read(path: Path, runs_of: TypeAdapter[Any]) -> dict[str, Any]:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    runs = {}
    for line in lines:
        try:
            entry = orjson.loads(line)
            runs[str(entry["key"])] = runs_of.validate_python(entry["run"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValidationError):
            continue  # truncated, or of another format
    return runs


def _key(case: Describing) -> str:
    digest = hashlib.sha256(_code(type(case)))
    digest.update(_adapter(type(case)).dump_json(case))
    for path in case.files:
        digest.update(b"" if path is None else _contents(path))
    return digest.hexdigest()


@cache
def _contents(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


@cache
def _code(case: type[Any]) -> bytes:
    digest = hashlib.sha256()
    own = ".".join(case.__module__.split(".")[:2])  # of a study, its code counts as well
    for package in sorted({"spotwise.core", "spotwise.files", "spotwise.simulator", own}):
        for folder in sys.modules[package].__path__:
            for source in sorted(Path(folder).rglob("*")):
                if source.suffix in (".py", ".json"):
                    digest.update(source.read_bytes())
    return digest.digest()
