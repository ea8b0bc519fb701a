"""Tables that users give: CSV files with a header, and JSON lines."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson


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
