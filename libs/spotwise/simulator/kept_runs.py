"""Runs in a file: what was simulated once is not simulated again, so that a search that was stopped goes on where it was.

Law: a run is found again only if nothing that it depends on has changed: its case, the files that this names, and the code
that it was simulated by. One line a run, appended in one piece when it is over, by whichever process; a line that was cut off
is passed over.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

import spotwise.core
import spotwise.simulator
from spotwise.simulator.experiment import Case, RunSummary, simulate

_CASE = TypeAdapter(Case)
_RUN = TypeAdapter(RunSummary)


@dataclass(frozen=True, slots=True)
class KeptRuns:
    """Simulates what is not in the file yet; may be sent to other processes.

    Attributes:
        path: of the file; it need not be there.
        run: makes a summary.
    """

    path: Path
    run: Callable[[Case], RunSummary] = simulate

    def __call__(self, case: Case) -> RunSummary:
        """Return a case's summary, from the file or a new run, which is then in the file.

        Raises:
            OSError: the file cannot be read or written.
        """
        key = _key(case)
        kept = _read(self.path).get(key)
        if kept is not None:
            return kept
        summary = self.run(case)
        # The line's end stands before it, so that one that was cut off spoils no other.
        line = b'\n{"key":"%b","run":%b}' % (key.encode(), _RUN.dump_json(summary))
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, line)
        finally:
            os.close(file)
        return summary


@cache
def _read(path: Path) -> dict[str, RunSummary]:
    """Return the runs that were in the file when this process first asked."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    runs = {}
    for line in lines:
        try:
            entry = orjson.loads(line)
            runs[str(entry["key"])] = _RUN.validate_python(entry["run"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValidationError):
            continue  # cut off, or of another format: it is simulated again
    return runs


def _key(case: Case) -> str:
    digest = hashlib.sha256(_code())
    digest.update(_CASE.dump_json(case))
    for path in (case.workload.path, case.profile):
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
            for source in sorted(Path(folder).rglob("*.py")):
                digest.update(source.read_bytes())
    return digest.digest()
