"""Runs in a file: what was simulated once is not simulated again, so that a search that was stopped goes on where it was.

Law: a run is found again only if nothing that it depends on has changed: its case, the files that this names, and the code
that it was simulated by. One line a run, appended in one piece when it is over, by whichever process; a line that was cut off
is passed over.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import orjson
from pydantic import TypeAdapter, ValidationError

import spotwise.core
import spotwise.simulator


class Describing(Hashable, Protocol):
    """A description of a run: a dataclass that JSON can hold."""

    @property
    def files(self) -> tuple[Path | None, ...]:
        """Files that the run reads, the same places for the same purposes."""


_Case = TypeVar("_Case", bound=Describing)
_Run = TypeVar("_Run")


@dataclass(frozen=True, slots=True)
class KeptRuns(Generic[_Case, _Run]):
    """Simulates what is not in the file yet; may be sent to other processes.

    Attributes:
        path: of the file; it need not be there.
        run: makes a summary.
        summary: what it makes, a dataclass that JSON can hold.
    """

    path: Path
    run: Callable[[_Case], _Run]
    summary: type[Any]

    def __call__(self, case: _Case) -> _Run:
        """Return a case's summary, from the file or a new run, which is then in the file.

        Raises:
            OSError: the file cannot be read or written.
        """
        key = _key(case)
        runs_of = _adapter(cast(Hashable, self.summary))
        kept = _read(self.path, runs_of).get(key)
        if kept is not None:
            return cast(_Run, kept)
        summary = self.run(case)
        # The line's end stands before it, so that one that was cut off spoils no other.
        line = b'\n{"key":"%b","run":%b}' % (key.encode(), runs_of.dump_json(summary))
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, line)
        finally:
            os.close(file)
        return summary


@cache
def _adapter(of: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, of))


@cache
def _read(path: Path, runs_of: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the runs that were in the file when this process first asked."""
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
            continue  # cut off, or of another format: it is simulated again
    return runs


def _key(case: Describing) -> str:
    digest = hashlib.sha256(_code())
    digest.update(_adapter(type(case)).dump_json(case))
    for path in case.files:
        digest.update(b"" if path is None else _contents(path))
    return digest.hexdigest()


@cache
def _contents(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


@cache
def _code() -> bytes:
    """Return what tells the code that runs depend on from another version of it."""
    digest = hashlib.sha256()
    for package in (spotwise.core, spotwise.simulator):
        for folder in package.__path__:
            for source in sorted(Path(folder).rglob("*")):
                if source.suffix in (".py", ".json"):
                    digest.update(source.read_bytes())
    return digest.digest()
