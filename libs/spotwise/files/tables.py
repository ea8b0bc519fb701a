"""Tables that users give: CSV files with a header, and TOML files."""

from __future__ import annotations

import csv
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError


class TraceError(ValueError):
    """A trace file is wrong; the message names file, line and fault."""


def csv_header(path: Path) -> tuple[str, ...]:
    """Return the names of a CSV file's columns; none of an empty file. Raises TraceError if it cannot be read."""
    with _read_as(path, "CSV file"), path.open(newline="", encoding="utf-8-sig") as file:
        return _header(path, csv.reader(file))


def csv_rows(
    path: Path, columns: Sequence[str], kind: str, optional: Sequence[str] = ()
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield line number and the cells of `columns`, then of `optional`, of a CSV file with a header; other columns are ignored,
    and an absent optional one is empty.

    Args:
        kind: what such a file is, with its article; for messages.

    Raises:
        TraceError: the file cannot be read, lacks a column, or a row has not as many fields as the header.
    """
    with _read_as(path, "CSV file"), path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file)
        header = _header(path, lines)
        missing = [column for column in columns if column not in header]
        if missing:
            raise TraceError(f"{path}, line 1: no column {', '.join(missing)}; {kind} begins with {','.join(columns)}")
        places = [header.index(name) if name in header else None for name in (*columns, *optional)]
        for row in lines:
            if not row:
                continue
            if len(row) != len(header):
                raise TraceError(f"{path}, line {lines.line_num}: {len(row)} fields where the header has {len(header)}")
            yield lines.line_num, tuple("" if place is None else row[place] for place in places)


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and object of a file of JSON lines; blank lines are skipped. Raises TraceError if the file cannot be
    read, or a line is no object."""
    with _read_as(path, "file of JSON lines"), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not (text := line.strip()):
                continue
            try:
                row = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise TraceError(f"{path}, line {number}: no JSON: {error}") from error
            if not isinstance(row, dict):
                raise TraceError(f"{path}, line {number}: no JSON object in braces")
            yield number, row


def _header(path: Path, lines: Iterator[list[str]]) -> tuple[str, ...]:
    header = tuple(next(lines, []))
    twice = [name for name, count in Counter(header).items() if count > 1 and name.strip()]
    if twice:
        raise TraceError(f"{path}, line 1: column {', '.join(twice)} is there twice; leave one out")
    return header


@contextmanager
def _read_as(path: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path} is no {kind}: {error}") from error


#: Configuration of a dataclass that is a table of such a file: keys that it does not know are wrong.
KNOWN_KEYS = ConfigDict(extra="forbid")


class FileTable(BaseModel):
    """A table of such a file: keys that it does not know are wrong."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def read_tables(path: Path, kind: str, page: str, wrong: type[ValueError]) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        kind: what such a file is, for messages.
        page: page of the documentation that has an example.
        wrong: raised, with what to do, where the file cannot be read or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise wrong(f"{path} cannot be read: {error.strerror}; name an existing {kind} file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise wrong(f"{path} is no TOML file: {error}; {page} has an example") from error


def first_fault(error: ValidationError, page: str) -> str:
    """Return the key and the fault of the first error; `page` of the documentation lists the keys."""
    fault = error.errors()[0]
    key = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        message = f"there is no such key; {page} lists them"
    elif fault["type"] in ("missing", "missing_argument"):
        message = f"the key is missing; {page} says what it means"
    return f"{key}: {message}" if key else message
