"""Tables that users give as CSV files with a header."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path


class TraceError(ValueError):
    """A trace file is wrong; the message names file, line and fault."""


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
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file)
            header = next(lines, [])
            missing = [column for column in columns if column not in header]
            if missing:
                raise TraceError(
                    f"{path}, line 1: no column {', '.join(missing)}; {kind} begins with {','.join(columns)}"
                )
            places = [header.index(name) if name in header else None for name in (*columns, *optional)]
            for row in lines:
                if not row:
                    continue
                if len(row) != len(header):
                    raise TraceError(
                        f"{path}, line {lines.line_num}: {len(row)} fields where the header has {len(header)}"
                    )
                yield lines.line_num, tuple("" if place is None else row[place] for place in places)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path} is no CSV file: {error}") from error
