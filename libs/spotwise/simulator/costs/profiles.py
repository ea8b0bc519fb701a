"""Reads profiles of machines, and selects the sound measurements. Columns and units are those of the published profile (Patel
et al., Splitwise, ISCA 2024, `perf_model.csv` of its simulator); the exclusion rules come from its 1,260 rows."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Longer answers ended early, at an end-of-sequence token: the context of their mean decode time is unknown.
LONGEST_TRUE_OUTPUT = 128
_DOUBTFUL = {("h100-80gb", 64), ("a100-80gb", 64), ("a100-80gb", 32)}


class ProfileError(ValueError):
    """A profile is wrong or incomplete; the message names file, line and fault."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One measurement.

    Attributes:
        tensor_parallel: GPUs.
        prompt_size: tokens of each request's prompt.
        batch_size: requests that ran together.
        token_size: requested output tokens.
        prompt_s: seconds of the batch's whole prompt phase.
        token_s: mean of an iteration of its token phase.
    """

    model: str
    hardware: str
    tensor_parallel: int
    prompt_size: int
    batch_size: int
    token_size: int
    prompt_s: float
    token_s: float

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts of the batch."""
        return self.prompt_size * self.batch_size

    @property
    def decode_context(self) -> int:
        """Context of an iteration in the middle of the answers, tokens."""
        return self.batch_size * (self.prompt_size + self.token_size // 2)


_COLUMNS: Mapping[str, type] = {
    "model": str,
    "hardware": str,
    "prompt_size": int,
    "batch_size": int,
    "token_size": int,
    "prompt_time": float,
    "token_time": float,
    "tensor_parallel": int,
}


def read_profile(path: Path) -> list[ProfileRow]:
    """Read all rows, sound or not; raises ProfileError if the file cannot be read or a line is wrong."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.DictReader(file)
            names = list(lines.fieldnames or ())
            if twice := [column for column in _COLUMNS if names.count(column) > 1]:
                raise ProfileError(f"{path}, line 1: column {', '.join(twice)} is there twice; leave one out")
            missing = [column for column in _COLUMNS if column not in names]
            if missing:
                raise ProfileError(f"{path}, line 1: no column {', '.join(missing)}")
            return [_row(path, lines.line_num, line) for line in lines]
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ProfileError(f"{path} is no CSV file: {error}") from error


def measured(rows: Iterable[ProfileRow]) -> tuple[list[ProfileRow], Counter[str]]:
    """Return the sound rows, and counts of the others by reason."""
    kept: list[ProfileRow] = []
    left_out: Counter[str] = Counter()
    for row in rows:
        reason = _reason_against(row)
        if reason is None:
            kept.append(row)
        else:
            left_out[reason] += 1
    return kept, left_out


def _reason_against(row: ProfileRow) -> str | None:
    if row.hardware.endswith("-pcap"):
        return "power-capped rows are other rows with the prompt time times 1.3, not measurements"
    if row.tensor_parallel == 2 and (row.hardware, row.batch_size) in _DOUBTFUL:
        return "with 2 GPUs the largest batches did not fit and waited"
    if row.token_size > LONGEST_TRUE_OUTPUT:
        return f"answers of more than {LONGEST_TRUE_OUTPUT} tokens ended early"
    return None


def _row(path: Path, line: int, fields: Mapping[str, str]) -> ProfileRow:
    values: dict[str, Any] = {}
    for column, kind in _COLUMNS.items():
        try:
            values[column] = kind(fields[column])
        except (TypeError, ValueError) as error:
            raise ProfileError(f"{path}, line {line}: {column} is {fields[column]!r}, not a number") from error
        if kind is not str and not values[column] > 0:
            raise ProfileError(f"{path}, line {line}: {column} is {fields[column]!r}, not above 0")
    prompt_s, token_s = values.pop("prompt_time") / 1000, values.pop("token_time") / 1000
    return ProfileRow(**values, prompt_s=prompt_s, token_s=token_s)
