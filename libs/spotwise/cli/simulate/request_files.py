"""A simulated run's requests as a file: CSV, or Parquet where pyarrow is installed."""

from __future__ import annotations

import importlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from spotwise.cli.bench.report import require_writable
from spotwise.cli.errors import OptionError
from spotwise.cli.simulate.progress import CLUSTERS, Simulations
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.experiment import simulate
from spotwise.simulator.runs.request_rows import COLUMNS, RequestRows
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.searches.search import Search

_CSV, _PARQUET = ".csv", ".parquet"
_WHOLE = ("seed", "prompt_tokens", "output_tokens", "priority", "cached_tokens")
_TEXTS = ("prompt_machine", "token_machine", "failure")

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _WrittenCase:
    case: Case
    file: Path


def require_request_file(path: Path | None) -> None:
    """Raise `OptionError` before the simulation if a file of requests cannot be written; `None` asks for none."""
    if path is None:
        return
    if path.suffix.lower() not in (_CSV, _PARQUET):
        raise OptionError(f"--requests {path}: its name ends neither in .csv nor in .parquet")
    if path.suffix.lower() == _PARQUET:
        _require_pyarrow(path)
    require_writable(path, "--requests")


def simulated(
    simulations: Simulations, cases: Mapping[_Key, Sequence[Case]], path: Path | None
) -> dict[_Key, Sequence[RunSummary]]:
    """Run cases, all different, and write the requests of all of them into one file where a path is given, case by case, each
    in the order of their ends. Raises `CommandError` as `Simulations.carry_out`."""
    if path is None:
        return simulations.carry_out({key: _together(own) for key, own in cases.items()}, "simulating")
    runs = iter(_with_requests(simulations, [case for own in cases.values() for case in own], path))
    return {key: list(islice(runs, len(own))) for key, own in cases.items()}


def _together(cases: Sequence[Case]) -> Search[Sequence[RunSummary]]:
    return (yield cases)


def _with_requests(simulations: Simulations, cases: Sequence[Case], path: Path) -> list[RunSummary]:
    parts = [path.with_name(f".{path.name}.{number}") for number in range(len(cases))]
    try:
        written = [_WrittenCase(case, part) for case, part in zip(cases, parts, strict=True)]
        runs = simulations.each(written, _simulate, CLUSTERS.describe, "simulating")
        (_join_as_parquet if path.suffix.lower() == _PARQUET else _join)(parts, path)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return runs


def _simulate(written: _WrittenCase) -> RunSummary:
    case = written.case
    with written.file.open("w", encoding="utf-8", newline="") as file:
        return simulate(case, RequestRows(file, case.rate, case.seed))


def _join(parts: Sequence[Path], path: Path) -> None:
    with path.open("wb") as whole:
        for number, part in enumerate(parts):
            with part.open("rb") as rows:
                header = rows.readline()
                if not number:
                    whole.write(header)
                while piece := rows.read(1 << 20):
                    whole.write(piece)


def _require_pyarrow(path: Path) -> None:
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise OptionError(
            f"--requests {path}: Parquet needs pyarrow, which is not installed; `pip install pyarrow`, or write a .csv"
        ) from error


def _join_as_parquet(parts: Sequence[Path], path: Path) -> None:
    # pyarrow is no dependency, and has no types
    arrow: Any = importlib.import_module("pyarrow")
    csv: Any = importlib.import_module("pyarrow.csv")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    kinds = {
        name: arrow.int64() if name in _WHOLE else arrow.string() if name in _TEXTS else arrow.float64()
        for name in COLUMNS
    }
    conversion = csv.ConvertOptions(column_types=kinds, null_values=[""], strings_can_be_null=True)
    with parquet.ParquetWriter(path, arrow.schema(list(kinds.items()))) as whole:
        for part in parts:
            with csv.open_csv(part, convert_options=conversion) as batches:
                for batch in batches:
                    whole.write_batch(batch)
