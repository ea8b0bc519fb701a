"""Formats of request traces, and their rows, read lazily: CSV with a header, or JSON lines. Columns are found by the names that
published traces have (Azure LLM inference 2023 and 2024, BurstGPT, Mooncake, Vidur, Splitwise)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from spotwise.files.tables import TraceError, csv_header, csv_rows, json_lines
from spotwise.simulator.world.observation import PromptBlocks

#: As in the Azure traces, which messages name.
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
#: Tokens of a block in Mooncake's traces.
MOONCAKE_BLOCK_TOKENS = 512

#: Names without case, blanks and underscores.
_TIMES = ("timestamp", "arrivaltimestamp", "arrivaltime", "arrivedat", "arrivals", "time", "ats")
_TIMES_MS = ("timestampms", "arrivalms", "arrivaltimems", "arrivaltimestampms", "timems")
_PROMPTS = (
    "contexttokens",
    "prompttokens",
    "requesttokens",
    "inputlength",
    "inputtokens",
    "numprefilltokens",
    "promptsize",
)
_OUTPUTS = (
    "generatedtokens",
    "outputtokens",
    "responsetokens",
    "outputlength",
    "completiontokens",
    "numdecodetokens",
    "tokensize",
)
_HASHES = "hashids"
#: Of BurstGPT, where a request that failed has an answer of no tokens.
_LOG_TYPE = "logtype"
#: Seconds from which on a number is taken for milliseconds that are not named so: the year 5138.
_TOO_LATE_S = 1e11
#: Whole numbers below it name blocks themselves.
_LARGEST_HASH = 2**62
#: Tokens of a prompt or an answer: a thousand times the longest context of today's models.
_MOST_TOKENS = 10**9


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A request of a trace; `at_s` by the trace's own numbers, or from its first date on."""

    line: int
    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: PromptBlocks | None = None


@dataclass(frozen=True, slots=True)
class _Columns:
    """Names in the file."""

    time: str
    prompt: str
    output: str
    hashes: str | None
    counts_ms: bool
    skips_failed: bool


def trace_rows(path: Path, block_tokens: int = MOONCAKE_BLOCK_TOKENS) -> Iterator[TraceRow]:
    """Yield a trace's requests as far as they are used; requests that failed (BurstGPT) are left out.

    Args:
        block_tokens: tokens of a block that `hash_ids` name.

    Raises:
        TraceError: the file cannot be read, a column is missing or in doubt, or a line is wrong.
    """
    columns, rows = _json_rows(path) if is_json_lines(path) else _csv_rows(path)
    first: float | datetime | None = None
    for line, (time, prompt, output, hashes) in rows:
        if columns.skips_failed and output in ("0", 0):
            continue
        at = _time(path, line, columns, time)
        first = at if first is None else first
        if isinstance(at, float) and isinstance(first, float):
            at_s = at
        elif isinstance(at, datetime) and isinstance(first, datetime):
            at_s = (at - first).total_seconds()
        else:
            raise TraceError(f"{path}, line {line}: {time!r}; the first line's time is {first}, of another kind")
        prompt_tokens = _tokens(path, line, columns.prompt, prompt)
        output_tokens = _tokens(path, line, columns.output, output)
        blocks = None if hashes is None else _blocks(path, line, hashes, prompt_tokens, block_tokens)
        yield TraceRow(line, at_s, prompt_tokens, output_tokens, blocks)


@cache
def has_hashes(path: Path) -> bool:
    """Tell whether a trace has hashes of its prompts' blocks; raises TraceError if it cannot be read."""
    return is_json_lines(path) and _json_rows(path)[0].hashes is not None


def is_json_lines(path: Path) -> bool:
    """Tell whether a file begins as JSON lines do; raises TraceError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from error


_Cells = tuple[int, tuple[Any, Any, Any, Any]]


def _csv_rows(path: Path) -> tuple[_Columns, Iterator[_Cells]]:
    columns = _columns(path, csv_header(path), is_json=False)
    names = (columns.time, columns.prompt, columns.output)
    return columns, ((line, (*cells, None)) for line, cells in csv_rows(path, names, "a trace"))  # type: ignore[misc]


def _json_rows(path: Path) -> tuple[_Columns, Iterator[_Cells]]:
    first = next((row for _, row in json_lines(path)), {})
    columns = _columns(path, list(first), is_json=True)
    names = (columns.time, columns.prompt, columns.output)

    def rows() -> Iterator[_Cells]:
        for line, row in json_lines(path):
            if missing := [name for name in names if name not in row]:
                raise TraceError(f"{path}, line {line}: no {', '.join(missing)}")
            hashes = None if columns.hashes is None else row.get(columns.hashes)
            yield line, (row[columns.time], row[columns.prompt], row[columns.output], hashes)

    return columns, rows()


def _columns(path: Path, names: Sequence[str], *, is_json: bool) -> _Columns:
    plain = {name: _plain(name) for name in names}
    time, prompt, output = (
        _one(path, plain, known, exact)
        for known, exact in zip(((*_TIMES, *_TIMES_MS), _PROMPTS, _OUTPUTS), COLUMNS, strict=True)
    )
    if time is None or prompt is None or output is None:
        missing = [exact for exact, name in zip(COLUMNS, (time, prompt, output), strict=True) if name is None]
        raise TraceError(
            f"{path}, line 1: no column {', '.join(missing)}, and none that other traces have in their place; "
            f"a trace begins with {','.join(COLUMNS)}"
        )
    hashes = next((name for name, word in plain.items() if word == _HASHES), None) if is_json else None
    # Mooncake's open traces count milliseconds, and do not say so
    counts_ms = plain[time] in _TIMES_MS or (is_json and plain[time] == "timestamp" and plain[prompt] == "inputlength")
    return _Columns(time, prompt, output, hashes, counts_ms, _LOG_TYPE in plain.values())


def _one(path: Path, plain: dict[str, str], known: Sequence[str], exact: str) -> str | None:
    if exact in plain:
        return exact
    found = [name for name, word in plain.items() if word in known]
    if len(found) > 1:
        raise TraceError(f"{path}, line 1: {' and '.join(found)} may both be {exact}; name the one to use {exact}")
    return found[0] if found else None


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _time(path: Path, line: int, columns: _Columns, cell: Any) -> float | datetime:
    """Return seconds, or a date with its time zone."""
    try:
        number = float(cell)
    except (TypeError, ValueError):
        return _date(path, line, cell)
    if not math.isfinite(number):
        raise TraceError(f"{path}, line {line}: {cell!r} is no finite time")
    if columns.counts_ms:
        return number / 1000
    if number >= _TOO_LATE_S:
        raise TraceError(
            f"{path}, line {line}: {columns.time} is {cell!r}, too large for seconds; name the column timestamp_ms where it "
            "counts milliseconds"
        )
    return number


def _date(path: Path, line: int, cell: Any) -> datetime:
    try:
        at = datetime.fromisoformat(cell)
    except (TypeError, ValueError) as error:
        raise TraceError(
            f"{path}, line {line}: {cell!r} is no time like 2023-11-16 18:17:03.9799600, and no number"
        ) from error
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _tokens(path: Path, line: int, column: str, cell: Any) -> int:
    try:
        tokens = int(cell) if isinstance(cell, (str, int)) else 0
    except ValueError:
        tokens = 0
    if tokens > _MOST_TOKENS:
        raise TraceError(
            f"{path}, line {line}: {column} is {tokens:.3g} tokens; no request has more than {_MOST_TOKENS:.0e}"
        )
    if tokens < 1:
        raise TraceError(f"{path}, line {line}: {column} is {cell!r}, not a number of tokens of at least 1")
    return tokens


def _blocks(path: Path, line: int, hashes: Any, prompt_tokens: int, block_tokens: int) -> PromptBlocks:
    if not isinstance(hashes, list):
        raise TraceError(f"{path}, line {line}: hash_ids is {hashes!r}, not a list")
    # some traces name the last block also where the prompt ends within it, others do not
    if len(hashes) not in (prompt_tokens // block_tokens, -(-prompt_tokens // block_tokens)):
        raise TraceError(
            f"{path}, line {line}: {len(hashes)} hash_ids are not the blocks of {prompt_tokens} tokens, {block_tokens} each; "
            "give the tokens of a block with --block-tokens"
        )
    return PromptBlocks(tuple(map(_block, hashes)), block_tokens)


def _block(name: Any) -> int:
    """Return a block's number: its own, or for other names a hash of these."""
    if type(name) is int and 0 <= name < _LARGEST_HASH:
        return name
    return int.from_bytes(hashlib.sha256(str(name).encode()).digest()[:8], "little") % _LARGEST_HASH
